// Package maps owns the pinned BPF maps: it creates, opens, pins and grows them, and gives each a typed table. What a
// row means is decided in package lb and written by package reconcile; nobody else writes them.
package maps

import (
	"encoding/binary"
	"net/netip"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/model"
)

// The rows of the maps, as generated from the C structs. All are comparable.
type (
	Addr     = bpf.MapsAddr
	SvcKey   = bpf.MapsSvcKey
	Svc      = bpf.MapsSvc
	Service  = bpf.MapsService
	Slot     = bpf.MapsSlot
	Backend  = bpf.MapsBackend
	NameText = bpf.MapsName
	Counter  = bpf.MapsCounter
	SockPeer = bpf.MapsSockPeer
	ConnPeer = bpf.MapsConnPeer
	Ways     = bpf.MapsWays
	Guard    = bpf.MapsGuard
)

// The kinds of frontend.
const (
	ClusterIP    = uint32(bpf.MapsSvcKindSVC_CLUSTER_IP)
	ExternalIP   = uint32(bpf.MapsSvcKindSVC_EXTERNAL_IP)
	ExternalOnly = uint32(bpf.MapsSvcKindSVC_EXTERNAL_ONLY)
	LoadBalancer = uint32(bpf.MapsSvcKindSVC_LOAD_BALANCER)
	NodePort     = uint32(bpf.MapsSvcKindSVC_NODE_PORT)
	HostPort     = uint32(bpf.MapsSvcKindSVC_HOST_PORT)
	Hosted       = uint32(bpf.MapsSvcKindSVC_HOSTED) // of a row that is no frontend, see HostedKey
)

// KindNames are the kinds of frontend as dumps show them.
var KindNames = [...]string{
	ClusterIP: "ClusterIP", ExternalIP: "ExternalIP", ExternalOnly: "ExternalOnly",
	LoadBalancer: "LoadBalancer", NodePort: "NodePort", HostPort: "HostPort", Hosted: "Hosted",
}

// The scopes of a service, and how many there are.
const (
	ScopeAll   = int(bpf.MapsSvcScopeSCOPE_ALL)
	ScopeLocal = int(bpf.MapsSvcScopeSCOPE_LOCAL)
	Scopes     = int(bpf.MapsSvcScopeSCOPES)
)

// The flags of a service.
const (
	InternalLocal = uint8(bpf.MapsServiceFlagSERVICE_INTERNAL_LOCAL)
	ExternalLocal = uint8(bpf.MapsServiceFlagSERVICE_EXTERNAL_LOCAL)
	SourceRanges  = uint8(bpf.MapsServiceFlagSERVICE_SOURCE_RANGES)
	DirectMask    = uint8(bpf.MapsServiceFlagSERVICE_DIRECT)
)

// DirectFlags returns the flags of a service, or of a row of a flow, whose packets are forwarded in a mode of enum direct.
func DirectFlags(mode uint8) uint8 { return mode << bpf.MapsDirectDIRECT_SHIFT }

// DirectMode is the reverse of DirectFlags: it returns the mode that flags have.
func DirectMode(flags uint8) uint8 { return flags & DirectMask >> bpf.MapsDirectDIRECT_SHIFT }

// The flags of a backend: it is on this node; it is about to go. They are no part of which backend it is.
const (
	BackendLocal       = uint8(bpf.MapsBackendFlagBACKEND_LOCAL)
	BackendTerminating = uint8(bpf.MapsBackendFlagBACKEND_TERMINATING)
)

// MaxIndex is the highest index of a service or a backend that a slot has room for.
const MaxIndex = 1<<24 - 1

// AddrOf returns addr as the maps have it: 16 bytes in network order, IPv4 mapped.
func AddrOf(addr netip.Addr) Addr {
	b := addr.As16()
	return Addr{Word: [4]uint32{
		binary.NativeEndian.Uint32(b[0:]), binary.NativeEndian.Uint32(b[4:]),
		binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:]),
	}}
}

// NetipOf is the reverse of AddrOf; a mapped address comes back as IPv4.
func NetipOf(addr Addr) netip.Addr {
	var b [16]byte
	for i, word := range addr.Word {
		binary.NativeEndian.PutUint32(b[4*i:], word)
	}
	return netip.AddrFrom16(b).Unmap()
}

// UnspecifiedOf returns the address of a family that stands for every address of the node.
func UnspecifiedOf(addr Addr) Addr {
	if NetipOf(addr).Is4() {
		return AddrOf(netip.IPv4Unspecified())
	}
	return AddrOf(netip.IPv6Unspecified())
}

// PortOf returns a port in the byte order that the maps have, and the reverse.
func PortOf(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

// KeyOf returns the row of a frontend.
func KeyOf(addr netip.Addr, port uint16, proto model.Protocol) SvcKey {
	return SvcKey{Addr: AddrOf(addr), Port: PortOf(port), Proto: uint8(proto)}
}

// PingKey returns the row that makes an address answer to pings: it has neither port nor protocol.
func PingKey(addr netip.Addr) SvcKey { return SvcKey{Addr: AddrOf(addr)} }

// HostedKey returns the row that lets other nodes forward packets to a backend on this node for it to answer; port 0 is
// that of the address, which every such backend has too.
func HostedKey(addr netip.Addr, port uint16) SvcKey {
	return SvcKey{Addr: AddrOf(addr), Port: PortOf(port), Hosted: 1}
}

// ClosedKey returns the row that a frontend leaves behind when a node is drained: other nodes go on to forward to backends on this
// one what its clients sent.
func ClosedKey(frontend SvcKey) SvcKey {
	frontend.Hosted = 1
	return frontend
}

// IsHosted reports whether the row is one of HostedKey's, which services may share, or of ClosedKey's: it is no frontend.
func IsHosted(key SvcKey) bool { return key.Hosted != 0 }

// IsPing reports whether the row is one of PingKey's.
func IsPing(key SvcKey) bool { return key == SvcKey{Addr: key.Addr} }

// AddrPort returns what a client of the frontend dials.
func AddrPort(key SvcKey) netip.AddrPort {
	return netip.AddrPortFrom(NetipOf(key.Addr), PortOf(key.Port))
}

// BackendOf returns the row of a backend that no service has yet.
func BackendOf(addr netip.Addr, port uint16, proto model.Protocol) Backend {
	return Backend{Addr: AddrOf(addr), Port: PortOf(port), Proto: uint8(proto)}
}

// BackendAddrPort returns the backend's address.
func BackendAddrPort(backend Backend) netip.AddrPort {
	return netip.AddrPortFrom(NetipOf(backend.Addr), PortOf(backend.Port))
}

// BackendIdentity returns what tells a row from others: without whose it is and where it runs, which may change.
func BackendIdentity(backend Backend) Backend {
	backend.Owner, backend.Flags = 0, 0
	return backend
}

// MakeOwner packs what a row of backends says of the service that has it: scopes has bit 1<<scope for each scope whose
// table leads to the row.
func MakeOwner(service uint32, scopes uint8) uint32 { return service&MaxIndex | uint32(scopes)<<24 }

// BackendService returns the service that a row of backends belongs to.
func BackendService(backend Backend) uint32 { return backend.Owner & MaxIndex }

// BackendScopes returns a bit 1<<scope for each scope whose table leads to the row.
func BackendScopes(backend Backend) uint8 { return uint8(backend.Owner >> 24) }

// Word is the whole of what a switch of tables changes: where a scope's slots are, and which tag they bear.
type Word uint64

// MakeWord packs a word.
func MakeWord(off uint32, n int, tag uint16) Word {
	return Word(off) | Word(n&0xffff)<<32 | Word(tag)<<48
}

// Off returns the first slot.
func (w Word) Off() uint32 { return uint32(w) }

// Len returns the number of slots.
func (w Word) Len() int { return int(w >> 32 & 0xffff) }

// Tag returns the tag.
func (w Word) Tag() uint16 { return uint16(w >> 48) }

// MakeSlot packs a slot; see struct slot for what the owner and the tag are for.
func MakeSlot(backend, service uint32, tag uint16) Slot {
	return Slot{Value: uint64(backend&MaxIndex) | uint64(service&MaxIndex)<<24 | uint64(tag)<<48}
}

// SlotBackend returns the index of the slot's backend.
func SlotBackend(slot Slot) uint32 { return uint32(slot.Value & MaxIndex) }

// SlotOwner returns the service that the slot belongs to.
func SlotOwner(slot Slot) uint32 { return uint32(slot.Value >> 24 & MaxIndex) }

// SlotTag returns the slot's tag.
func SlotTag(slot Slot) uint16 { return uint16(slot.Value >> 48) }
