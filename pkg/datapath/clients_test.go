package datapath

import (
	"errors"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
)

// Clients with session affinity get more room as their number grows, once they have taken half of
// it and not before, up to the limit. All of them keep their backends, although the service's table
// no longer leads them there.
func TestClientsGetRoom(t *testing.T) {
	const few, many = 32000, 33000
	w := newForwardingNode(t, devices.Off)
	d := w.start(t)
	tables := d.Tables()
	tables.Services[1].AffinitySeconds = 3600
	room := d.Maps().Affinity.MaxEntries()
	if few > room/2 || many <= room/2 {
		t.Fatalf("there is room for %d clients", room)
	}
	c := w.newCrowd(many)
	c.begin(t, 0, few)
	follow := func(most, want uint32) {
		t.Helper()
		w.do(t, func() error { return d.followClients(most) })
		if have := d.Maps().Affinity.MaxEntries(); have != want {
			t.Fatalf("there is room for %d clients, want %d", have, want)
		}
	}
	follow(4*room, room)
	c.begin(t, few, many)
	follow(room, room)
	follow(4*room, 2*room)
	follow(4*room, 2*room)

	if tables != d.Tables() {
		t.Error("the tables were replaced without telling the reconciler")
	}
	for i := range tables.Slots[:64] {
		tables.Slots[i] = maps.MakeSlot(1+(uint32(i)+1)%4, 1, 3)
	}
	forgetFlows(t, d.Maps())
	before := slices.Clone(c.flows)
	clear(c.flows)
	c.begin(t, 0, many)
	others := 0
	for i, was := range before {
		if c.flows[i].backend != was.backend {
			others++
		}
	}
	if others > 0 {
		t.Errorf("%d clients of %d got another backend", others, many)
	}
}

// begin makes the clients from first up to, but not including, last open a flow each.
func (c *crowd) begin(t *testing.T, first, last int) {
	t.Helper()
	for ; first < last; first += clientBatch {
		if err := c.talk(first, min(last, first+clientBatch)); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.wrong) > 0 {
		t.Fatalf("%d failures, the first: %s", len(c.wrong), c.wrong[0])
	}
}

// forgetFlows deletes all rows of flows.
func forgetFlows(t *testing.T, m *maps.Maps) {
	t.Helper()
	for _, of := range []*ebpf.Map{m.Ct, m.CtPending} {
		var all []maps.Flow
		err := maps.EachFlow(of, new(maps.FlowBuffer), func(keys []maps.Flow, _ []maps.FlowRow) error {
			all = append(all, keys...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range all {
			if err := of.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				t.Fatal(err)
			}
		}
	}
}
