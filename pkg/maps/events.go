package maps

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"fairlead.io/fairlead/pkg/bpf"
)

// The rows that request events and report them to monitors. All are comparable.
type (
	Watch   = bpf.MapsWatch
	Watched = bpf.MapsWatched
	Event   = bpf.MapsEvent
)

// WatchedKinds is the number of kinds of event, each with a rate limit of its own.
const WatchedKinds = int(bpf.MapsWatchedKindWATCHED_KINDS)

// ChoiceBit is the bit of Watch.Reasons that stands for the choice of a backend.
const ChoiceBit = uint64(1) << bpf.MapsReasonREASON_NONE

// SetWatchAddr makes w ask for packets to or from addresses in prefix.
func SetWatchAddr(w *Watch, prefix netip.Prefix) {
	bits := prefix.Bits()
	if prefix.Addr().Is4() {
		bits += mappedBits
	}
	ones := netip.AddrFrom16([16]byte{
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
	})
	mask, _ := ones.Prefix(bits) // no error: bits is at most 128
	w.Addr, w.Mask = AddrOf(prefix.Masked().Addr()), AddrOf(mask.Addr())
}

// EventDestination returns the destination of a packet after its rewrite, and false if none was
// decided.
func EventDestination(e *Event) (netip.AddrPort, bool) {
	return netip.AddrPortFrom(NetipOf(e.Daddr), PortOf(e.Dport)), e.Daddr != Addr{}
}

// EventSource returns the source of a packet after its rewrite.
func EventSource(e *Event) netip.AddrPort {
	return netip.AddrPortFrom(NetipOf(e.Saddr), PortOf(e.Sport))
}

// DecodeEvent decodes an event as a program wrote it.
func DecodeEvent(raw []byte, e *Event) error {
	if _, err := binary.Decode(raw, binary.NativeEndian, e); err != nil {
		return fmt.Errorf("decode event of %d bytes: %w", len(raw), err)
	}
	return nil
}
