package maps

import "fairlead.io/fairlead/pkg/model"

// Origin is the address a socket dialed and the backend it got. Both have the socket's protocol.
// Backend.Owner is not set.
type Origin struct {
	Dialed  SvcKey
	Backend Backend
}

// OriginOf returns the Origin of a socket of that protocol from its record.
func OriginOf(record SockOrigin, protocol model.Protocol) Origin {
	return Origin{
		Dialed:  SvcKey{Addr: record.Vip, Port: record.VipPort, Proto: uint8(protocol)},
		Backend: Backend{Addr: record.Backend, Port: record.BackendPort, Proto: uint8(protocol)},
	}
}
