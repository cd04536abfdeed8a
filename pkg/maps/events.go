package maps

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"fairlead.io/fairlead/pkg/bpf"
)

// The rows by which monitors are told of packets. All are comparable.
type (
	Watch   = bpf.MapsWatch
	Watched = bpf.MapsWatched
	Event   = bpf.MapsEvent
)

// WatchedKinds is how many kinds of event are bounded apart from each other.
const WatchedKinds = int(bpf.MapsWatchedKindWATCHED_KINDS)

// ChoiceBit is the bit of Watch.Reasons that stands for the choice of a backend.
const ChoiceBit = uint64(1) << bpf.MapsReasonREASON_NONE

// SetWatchAddr makes a row ask for packets of addresses in a prefix.
func SetWatchAddr(w *Watch, prefix netip.Prefix) {
	bits := prefix.Bits()
	if prefix.Addr().Is4() {
		bits += mappedBits
	}
	ones := netip.AddrFrom16([16]byte{
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
	})
	mask, _ := ones.Prefix(bits) // which has no more bits than there are
	w.Addr, w.Mask = AddrOf(prefix.Masked().Addr()), AddrOf(mask.Addr())
}

// EventDestination returns where a packet goes after its rewrite, and false if that was not decided.
func EventDestination(e *Event) (netip.AddrPort, bool) {
	return netip.AddrPortFrom(NetipOf(e.Daddr), PortOf(e.Dport)), e.Daddr != Addr{}
}

// EventSource returns where it seems to come from then.
func EventSource(e *Event) netip.AddrPort {
	return netip.AddrPortFrom(NetipOf(e.Saddr), PortOf(e.Sport))
}

// DecodeEvent reads an event as a program wrote it.
func DecodeEvent(raw []byte, e *Event) error {
	if _, err := binary.Decode(raw, binary.NativeEndian, e); err != nil {
		return fmt.Errorf("decode event of %d bytes: %w", len(raw), err)
	}
	return nil
}
