package maps

import "fairlead.io/fairlead/pkg/model"

// Peer is what a connected socket dialled, and the backend that it got. Both have the socket's protocol; the backend's
// owner is left out.
type Peer struct {
	Dialled SvcKey
	Backend Backend
}

// PeerOf returns what the record of a socket of that protocol says.
func PeerOf(record SockPeer, protocol model.Protocol) Peer {
	return Peer{
		Dialled: SvcKey{Addr: record.Vip, Port: record.VipPort, Proto: uint8(protocol)},
		Backend: Backend{Addr: record.Backend, Port: record.BackendPort, Proto: uint8(protocol)},
	}
}
