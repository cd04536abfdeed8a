package connections

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

func TestRoom(t *testing.T) {
	const gib = 1 << 30
	for _, tt := range []struct {
		name string
		have Needs
		want maps.Room
	}{
		{"a small node", Needs{2, 4 * gib, 262144, 0, 0}, maps.Room{HalfOpen: 32768, Datagrams: 8192}},
		{"a large one", Needs{64, 256 * gib, 4 << 20, 0, 0}, maps.Room{HalfOpen: 524288, Datagrams: 262144}},
		{"services with affinity", Needs{2, 16 * gib, 262144, 50, 10}, maps.Room{HalfOpen: 32768, Clients: 204800, Datagrams: 8192}},
		{"clients that there are", Needs{2, 16 * gib, 262144, 1, 60000}, maps.Room{HalfOpen: 32768, Clients: 120000, Datagrams: 8192}},
		{"no more than memory", Needs{2, gib, 1 << 27, 1000, 1 << 20}, maps.Room{HalfOpen: 16384, Clients: 16384, Datagrams: 8192}},
		{"nothing is known", Needs{}, maps.Room{}},
	} {
		if diff := cmp.Diff(tt.want, tt.have.Room()); diff != "" {
			t.Errorf("%s (-want +have):\n%s", tt.name, diff)
		}
	}
}

func TestRowsIn(t *testing.T) {
	for bytes, want := range map[uint64]uint32{0: 1, 192: 1, 191 * 4: 2, 16 << 20: 1 << 16, 64 << 20: 1 << 18, 1 << 60: 1 << 24} {
		if have := rowsIn(bytes); have != want {
			t.Errorf("%d rows in %d bytes, want %d", have, bytes, want)
		}
	}
}

func TestAffinePorts(t *testing.T) {
	store := model.NewStore("node-a")
	two := []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00::1")}
	for name, s := range map[string]model.Service{
		"dual": {ClusterIPs: two, Ports: make([]model.Port, 3), AffinitySeconds: 60}, "none": {ClusterIPs: two, Ports: make([]model.Port, 5)},
		"one": {ClusterIPs: two[:1], Ports: make([]model.Port, 1), AffinitySeconds: 1},
	} {
		s.Name = model.Name{Namespace: "a", Name: name}
		store.SetService(&s)
	}
	if n := affinePorts(store); n != 7 {
		t.Errorf("%d ports, want 7", n)
	}
}
