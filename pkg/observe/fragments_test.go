package observe

import (
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/test/rig"
)

// The counts of fragments are read from the pins, with an agent and without.
func TestFragments(t *testing.T) {
	rig.Root(t)
	m, err := maps.Create(maps.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	dir := rig.BPFFS(t)
	if err := m.Pin(dir); err != nil {
		t.Fatal(err)
	}
	if err := m.EarlyTally.Put(uint32(0), bpf.MapsEarlyTally{Kept: 11, Returned: 12, Lost: 13, Refused: 14}); err != nil {
		t.Fatal(err)
	}
	want := mapstats.Fragments{Stored: 11, Returned: 12, Lost: 13, Refused: 14}
	gauge, err := mapstats.NewReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	reading, err := gauge.Read()
	if err != nil || reading.Fragments != want || len(reading.Maps) != len(m.All()) {
		t.Errorf("the gauge reads %+v of %d maps, %v", reading.Fragments, len(reading.Maps), err)
	}
	pinned, err := mapstats.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if s := NewStatus(pinned); s.Fragments != want {
		t.Errorf("the status has %+v, want %+v", s.Fragments, want)
	}
}
