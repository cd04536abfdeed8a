package maps

import "fairlead.io/fairlead/pkg/model"

// Peer is the address a socket dialed and the backend it got. Both have the socket's protocol.
// Backend.Owner is not set.
type Peer struct {
	Dialed  SvcKey
	Backend Backend
}

// PeerOf returns the Peer of a socket of that protocol from its record.
func PeerOf(record SockOrigin, protocol model.Protocol) Peer {
	return Peer{
		Dialed:  SvcKey{Addr: record.Vip, Port: record.VipPort, Proto: uint8(protocol)},
		Backend: Backend{Addr: record.Backend, Port: record.BackendPort, Proto: uint8(protocol)},
	}
}
