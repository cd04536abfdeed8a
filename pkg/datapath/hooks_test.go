package datapath

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// idle returns the idle programs, and fails the test if another program is not attached.
func idle(t *testing.T, d *Datapath) (names []string) {
	t.Helper()
	for _, p := range status(t, d).Programs {
		if p.Attached == p.Idle {
			t.Errorf("%+v", p)
		}
		if p.Idle {
			names = append(names, p.Name)
		}
	}
	var pinned []string
	links, err := d.pins.linkNames()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range hooks(t) {
		if !slices.Contains(names, name) {
			pinned = append(pinned, name)
		}
	}
	if diff := cmp.Diff(pinned, links); diff != "" {
		t.Errorf("pinned links (-want +got):\n%s", diff)
	}
	return names
}

// Programs that only some frontends need are attached with the first of these frontends, survive
// growths, damage and restarts while there is one, and are detached by a restart if there is none.
func TestPrepare(t *testing.T) {
	var bind, datagram []string
	for _, name := range hooks(t) {
		if strings.HasPrefix(name, "sock_bind") {
			bind = append(bind, name)
		}
		if strings.HasPrefix(name, "sock_sendmsg") || strings.HasPrefix(name, "sock_recvmsg") {
			datagram = append(datagram, name)
		}
	}
	if len(bind) != 2 || len(datagram) != 4 {
		t.Fatalf("%q, %q", bind, datagram)
	}
	neither := slices.Sorted(slices.Values(slices.Concat(bind, datagram)))
	p, step := newMounts(t), ""
	p.OnDemand = true
	p.failing(&step)
	d := running(t, p)
	want := func(what string, names []string) {
		t.Helper()
		if diff := cmp.Diff(names, idle(t, d)); diff != "" {
			t.Errorf("%s: idle (-want +got):\n%s", what, diff)
		}
		if !connects(t, p) {
			t.Errorf("%s: cannot reach the service", what)
		}
	}
	prepare := func(proto uint8, kind uint32) error {
		return d.Prepare([]maps.SvcKey{{Port: 1, Proto: unix.IPPROTO_TCP}, {Port: 1, Proto: proto}}, []maps.Svc{{}, {Kind: kind}})
	}
	want("TCP alone", neither)
	if err := prepare(unix.IPPROTO_TCP, maps.LoadBalancer); err != nil {
		t.Fatal(err)
	}
	want("more TCP", neither)

	step = "attach: " + datagram[1]
	if err := prepare(unix.IPPROTO_UDP, maps.ClusterIP); !errors.Is(err, errBoom) {
		t.Fatalf("Prepare: %v", err)
	}
	want("a failure", neither)
	step = ""
	if err := prepare(unix.IPPROTO_UDP, maps.ClusterIP); err != nil {
		t.Fatal(err)
	}
	want("UDP", bind)
	if err := errors.Join(d.Grow(double(d.Sizes())), d.links[datagram[0]].Detach()); err != nil {
		t.Fatal(err)
	}
	if found := d.CheckAttachment(); found.Error != "" || found.Mended != 1 {
		t.Errorf("%+v", found)
	}
	want("a growth and damage", bind)

	nodePort := maps.KeyOf(netip.IPv4Unspecified(), 30080, unix.IPPROTO_TCP)
	row := maps.Svc{Service: 3, Kind: maps.NodePort}
	if err := errors.Join(prepare(unix.IPPROTO_TCP, maps.NodePort), d.Tables().Svcs.Update(nodePort, row), d.Close()); err != nil {
		t.Fatal(err)
	}
	d = open(t, p.Config)
	if err := d.Attach(); err != nil {
		t.Fatal(err)
	}
	want("a restart with a NodePort and no UDP", datagram)
}

// The row that a drained node's frontend leaves behind is not a frontend: connections to it that
// began meanwhile belong to others, and a new agent must leave them alone.
func TestClosedIsNoFrontend(t *testing.T) {
	key := maps.KeyOf(netip.IPv4Unspecified(), 30001, model.UDP)
	row := maps.Svc{Kind: maps.NodePort}
	if known := frontendsOf([]maps.SvcKey{key, maps.ClosedKey(key)}, []maps.Svc{row, row}); len(known) != 1 {
		t.Errorf("the frontends are %v", known)
	}
}
