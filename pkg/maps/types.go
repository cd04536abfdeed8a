// Package maps owns the pinned BPF maps: it creates, opens, pins and grows them, and provides typed
// access. Package lb decides what the rows of services contain, and only package reconcile writes
// them.
package maps

import (
	"encoding/binary"
	"net/netip"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/model"
)

// The keys and rows of the maps, generated from the C structs. All are comparable.
type (
	Addr       = bpf.MapsAddr
	SvcKey     = bpf.MapsSvcKey
	Svc        = bpf.MapsSvc
	Service    = bpf.MapsService
	Slot       = bpf.MapsSlot
	Backend    = bpf.MapsBackend
	NameText   = bpf.MapsName
	Counter    = bpf.MapsCounter
	SockOrigin = bpf.MapsSockOrigin
	ConnOrigin = bpf.MapsConnOrigin
	RouteEpoch = bpf.MapsRouteEpoch
	RangeEpoch = bpf.MapsRangeEpoch
)

// The kinds of frontend.
const (
	ClusterIP    = uint32(bpf.MapsSvcKindSVC_CLUSTER_IP)
	ExternalIP   = uint32(bpf.MapsSvcKindSVC_EXTERNAL_IP)
	ExternalOnly = uint32(bpf.MapsSvcKindSVC_EXTERNAL_ONLY)
	LoadBalancer = uint32(bpf.MapsSvcKindSVC_LOAD_BALANCER)
	NodePort     = uint32(bpf.MapsSvcKindSVC_NODE_PORT)
	HostPort     = uint32(bpf.MapsSvcKindSVC_HOST_PORT)
	Hosted       = uint32(bpf.MapsSvcKindSVC_HOSTED) // a row that is no frontend, see HostedKey
)

// KindNames are the names of the kinds of frontend in dumps.
var KindNames = [...]string{
	ClusterIP: "ClusterIP", ExternalIP: "ExternalIP", ExternalOnly: "ExternalOnly",
	LoadBalancer: "LoadBalancer", NodePort: "NodePort", HostPort: "HostPort", Hosted: "Hosted",
}

// The scopes of a service, and their number.
const (
	ScopeAll   = int(bpf.MapsSvcScopeSCOPE_ALL)
	ScopeLocal = int(bpf.MapsSvcScopeSCOPE_LOCAL)
	Scopes     = int(bpf.MapsSvcScopeSCOPES)
)

// Flags of a service.
const (
	InternalLocal = uint8(bpf.MapsServiceFlagSERVICE_INTERNAL_LOCAL)
	ExternalLocal = uint8(bpf.MapsServiceFlagSERVICE_EXTERNAL_LOCAL)
	SourceRanges  = uint8(bpf.MapsServiceFlagSERVICE_SOURCE_RANGES)
	DirectMask    = uint8(bpf.MapsServiceFlagSERVICE_DSR)
)

// DirectFlags returns the flags of a service for forwarding in a mode of enum dsr_mode.
func DirectFlags(mode uint8) uint8 { return mode << bpf.MapsDsrModeDSR_SHIFT }

// DirectMode is the inverse of DirectFlags: it extracts the mode from flags.
func DirectMode(flags uint8) uint8 { return flags & DirectMask >> bpf.MapsDsrModeDSR_SHIFT }

// Flags of a backend: it runs on this node; it is terminating. They are not part of its identity.
const (
	BackendLocal       = uint8(bpf.MapsBackendFlagBACKEND_LOCAL)
	BackendTerminating = uint8(bpf.MapsBackendFlagBACKEND_TERMINATING)
)

// MaxIndex is the highest index of a service or a backend that fits into a slot.
const MaxIndex = 1<<24 - 1

// AddrOf returns addr in the format of the maps: 16 bytes in network order, IPv4-mapped.
func AddrOf(addr netip.Addr) Addr {
	b := addr.As16()
	return Addr{Word: [4]uint32{
		binary.NativeEndian.Uint32(b[0:]), binary.NativeEndian.Uint32(b[4:]),
		binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:]),
	}}
}

// NetipOf is the inverse of AddrOf. It returns a mapped address as IPv4.
func NetipOf(addr Addr) netip.Addr {
	var b [16]byte
	for i, word := range addr.Word {
		binary.NativeEndian.PutUint32(b[4*i:], word)
	}
	return netip.AddrFrom16(b).Unmap()
}

// UnspecifiedOf returns the unspecified address of addr's family, which stands for every address of
// the node.
func UnspecifiedOf(addr Addr) Addr {
	if NetipOf(addr).Is4() {
		return AddrOf(netip.IPv4Unspecified())
	}
	return AddrOf(netip.IPv6Unspecified())
}

// PortOf converts a port between host order and the order of the maps, either way.
func PortOf(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

// KeyOf returns the key of a frontend.
func KeyOf(addr netip.Addr, port uint16, proto model.Protocol) SvcKey {
	return SvcKey{Addr: AddrOf(addr), Port: PortOf(port), Proto: uint8(proto)}
}

// PingKey returns the key of the row that makes an address answer pings: it has neither port nor
// protocol.
func PingKey(addr netip.Addr) SvcKey { return SvcKey{Addr: AddrOf(addr)} }

// HostedKey returns the key of the row that lets other nodes forward what clients of a service sent
// to one of its backends on this node, to be answered from here.
func HostedKey(backend netip.AddrPort, service uint32) SvcKey {
	return SvcKey{Addr: AddrOf(backend.Addr()), Port: PortOf(backend.Port()), Hosted: hostedBackend, Service: service}
}

// HostedAddrKey returns the key of the row that says that a backend on this node has the address.
func HostedAddrKey(addr netip.Addr) SvcKey { return SvcKey{Addr: AddrOf(addr), Hosted: hostedBackend} }

// FrontendAddrKey returns the key of the row that says that a frontend has the address.
func FrontendAddrKey(addr Addr) SvcKey { return SvcKey{Addr: addr, Hosted: hostedFrontend} }

// OwnedKey returns key with the index of its service, if rows of that kind belong to one.
func OwnedKey(key SvcKey, service uint32) SvcKey {
	if key.Hosted == hostedBackend && key.Port != 0 {
		key.Service = service
	}
	return key
}

const (
	hostedBackend  = uint8(bpf.MapsHostedHOSTED_BACKEND)
	hostedFrontend = uint8(bpf.MapsHostedHOSTED_FRONTEND)
)

// ClosedKey returns the key of the row that a frontend leaves behind when a node is drained: other
// nodes go on forwarding packets of its clients to backends on this one.
func ClosedKey(frontend SvcKey) SvcKey {
	frontend.Hosted = hostedBackend
	return frontend
}

// IsHosted reports whether key is one of those above, whose rows services may share. None is a
// frontend.
func IsHosted(key SvcKey) bool { return key.Hosted != 0 }

// IsPing reports whether key is one of PingKey.
func IsPing(key SvcKey) bool { return key == SvcKey{Addr: key.Addr} }

// AddrPort returns the address that clients of the frontend dial.
func AddrPort(key SvcKey) netip.AddrPort {
	return netip.AddrPortFrom(NetipOf(key.Addr), PortOf(key.Port))
}

// BackendOf returns the row of a backend without an owner.
func BackendOf(addr netip.Addr, port uint16, proto model.Protocol) Backend {
	return Backend{Addr: AddrOf(addr), Port: PortOf(port), Proto: uint8(proto)}
}

// BackendAddrPort returns the backend's address and port.
func BackendAddrPort(backend Backend) netip.AddrPort {
	return netip.AddrPortFrom(NetipOf(backend.Addr), PortOf(backend.Port))
}

// BackendIdentity returns the row without its owner and flags, which may change while it stays the
// same backend.
func BackendIdentity(backend Backend) Backend {
	backend.Owner, backend.Flags = 0, 0
	return backend
}

// MakeOwner packs the owner of a backend: its service, and in scopes a bit 1<<scope for each scope
// whose table contains the backend.
func MakeOwner(service uint32, scopes uint8) uint32 { return service&MaxIndex | uint32(scopes)<<24 }

// BackendService returns the service that owns the backend.
func BackendService(backend Backend) uint32 { return backend.Owner & MaxIndex }

// BackendScopes returns a bit 1<<scope for each scope whose table contains the backend.
func BackendScopes(backend Backend) uint8 { return uint8(backend.Owner >> 24) }

// Word is all that changes when a scope switches tables: where its slots are, how many, and their
// tag.
type Word uint64

// MakeWord packs a Word.
func MakeWord(off uint32, n int, tag uint16) Word {
	return Word(off) | Word(n&0xffff)<<32 | Word(tag)<<48
}

// Off returns the index of the first slot.
func (w Word) Off() uint32 { return uint32(w) }

// Len returns the number of slots.
func (w Word) Len() int { return int(w >> 32 & 0xffff) }

// Tag returns the tag of the slots.
func (w Word) Tag() uint16 { return uint16(w >> 48) }

// MakeSlot packs a slot. See struct slot for the purpose of the owner and the tag.
func MakeSlot(backend, service uint32, tag uint16) Slot {
	return Slot{Value: uint64(backend&MaxIndex) | uint64(service&MaxIndex)<<24 | uint64(tag)<<48}
}

// SlotBackend returns the index of the slot's backend.
func SlotBackend(slot Slot) uint32 { return uint32(slot.Value & MaxIndex) }

// SlotOwner returns the service that owns the slot.
func SlotOwner(slot Slot) uint32 { return uint32(slot.Value >> 24 & MaxIndex) }

// SlotTag returns the slot's tag.
func SlotTag(slot Slot) uint16 { return uint16(slot.Value >> 48) }
