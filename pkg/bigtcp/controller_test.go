package bigtcp

import (
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// host is a node with veths eth0 and eth1, which take large packets, and a bridge br0, which does
// not.
type host struct {
	t      *testing.T
	ns     *rig.Netns
	dir    string
	served []string
}

func newHost(t *testing.T) *host {
	rig.Root(t)
	h := &host{t: t, ns: rig.NewNetns(t, "node"), dir: t.TempDir()}
	elsewhere := rig.NewNetns(t, "elsewhere")
	for _, name := range []string{"eth0", "eth1"} {
		rig.Veth(t, h.ns, name, elsewhere, name)
	}
	rig.Bridge(t, h.ns, "br0")
	if size, _ := takes(h.link("eth0"), true); size == 0 {
		t.Fatal("this kernel cannot make large IPv4 packets")
	}
	return h
}

func (h *host) do(fn func() error) {
	h.t.Helper()
	if err := h.ns.Do(fn); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) link(name string) (link netlink.Link) {
	h.t.Helper()
	h.do(func() (err error) { link, err = netlink.LinkByName(name); return err })
	return link
}

// controller returns a Controller that has looked at the served devices.
func (h *host) controller(cfg Config) (k *Controller) {
	h.t.Helper()
	cfg.Dir, cfg.Log, cfg.Devices = h.dir, slog.New(slog.NewTextHandler(h.t.Output(), nil)), func() (list []devices.Device) {
		for _, name := range h.served {
			list = append(list, devices.Device{Name: name, Index: h.link(name).Attrs().Index})
		}
		return list
	}
	h.do(func() error { k = New(cfg); return nil })
	if problem := k.Status().Error; problem != "" {
		h.t.Fatal(problem)
	}
	return k
}

func (h *host) update(k *Controller) {
	h.t.Helper()
	h.do(func() error { k.update(); return nil })
}

// require checks the limits of devices.
func (h *host) require(want limits, names ...string) {
	h.t.Helper()
	for _, name := range names {
		if have := limitsOf(h.link(name).Attrs()); have != want {
			h.t.Errorf("%s has %+v, want %+v", name, have, want)
		}
	}
}

func (h *host) restore() (names []string) {
	h.t.Helper()
	h.do(func() (err error) { names, err = Restore(h.dir); return err })
	return names
}

var (
	before = limits{usual, usual, usual, usual}
	large  = limits{most, most, most, most}
)

// Limits are raised on the devices that are served, and restored when a device is no longer served,
// when a family is turned off, and by Restore. What others have changed in between stays.
func TestController(t *testing.T) {
	h := newHost(t)
	h.require(before, "eth0", "eth1", "br0")
	h.served = []string{"eth0", "eth1"}
	k := h.controller(Config{})
	h.require(large, "eth0", "eth1")
	h.require(before, "br0")
	if s := k.Status(); s.Sizes() != (Sizes{most, most}) || !slices.Equal(s.Devices, h.served) {
		t.Errorf("stats %+v", s)
	}

	h.served = []string{"eth1"}
	h.update(k)
	h.require(before, "eth0")
	h.require(large, "eth1")

	h.served = []string{"eth0", "eth1"}
	h.controller(Config{Why6: "no"}) // as the next agent does
	h.require(limits{usual, usual, most, most}, "eth0", "eth1")
	h.do(func() error { return netlink.LinkSetGROMaxSize(h.link("eth1"), 100_000) })
	if names := h.restore(); !slices.Equal(names, []string{"eth0"}) {
		t.Errorf("Restore returned %q", names)
	}
	h.require(before, "eth0")
	h.require(limits{usual, 100_000, most, most}, "eth1")
	if names := h.restore(); len(names) > 0 {
		t.Errorf("Restore returned %q the second time", names)
	}
}

// A limit that somebody has raised further stays, and is restored to that.
func TestControllerLeavesLarger(t *testing.T) {
	h := newHost(t)
	h.do(func() error { return netlink.LinkSetGSOMaxSize(h.link("eth0"), 300_000) })
	h.served = []string{"eth0"}
	h.controller(Config{})
	h.require(limits{300_000, most, most, most}, "eth0")
	h.restore()
	h.require(limits{300_000, usual, usual, usual}, "eth0")
}

// A device that takes no large packets, by itself or as part of another, keeps all devices at their
// limits, and Status names it.
func TestControllerRefused(t *testing.T) {
	h := newHost(t)
	h.served = []string{"eth0"}
	k := h.controller(Config{})
	h.require(large, "eth0")
	h.served = []string{"eth0", "br0"}
	h.update(k)
	h.require(before, "eth0", "br0")
	s := k.Status()
	if s.Sizes() != (Sizes{}) || !strings.Contains(s.Why4, "br0 takes 65536") || s.Why6 != s.Why4 {
		t.Errorf("stats %+v", s)
	}
	h.served = []string{"eth0"}
	h.update(k)
	h.require(large, "eth0")
}

// The devices below a device belong to it.
func TestParts(t *testing.T) {
	link := func(index, master, parent int, kind string) netlink.Link {
		return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index, MasterIndex: master, ParentIndex: parent}, LinkType: kind}
	}
	links := []netlink.Link{
		link(2, 4, 0, "device"), link(3, 4, 0, "device"), link(4, 0, 0, "bond"), link(5, 0, 4, "vlan"), link(6, 0, 7, "veth"), link(7, 0, 6, "veth"),
	}
	for _, test := range []struct{ of, want []int }{{[]int{5}, []int{2, 3, 4, 5}}, {[]int{2}, []int{2}}, {[]int{6}, []int{6}}, {nil, nil}, {[]int{4, 5, 9}, []int{2, 3, 4, 5}}} {
		var have []int
		for _, link := range withParts(links, test.of) {
			have = append(have, link.Attrs().Index)
		}
		if !slices.Equal(have, test.want) {
			t.Errorf("%v has the parts %v, want %v", test.of, have, test.want)
		}
	}
}

// The reason names the kernel or the device that is in the way.
func TestTakes(t *testing.T) {
	for _, test := range []struct {
		at       netlink.LinkAttrs
		v4, v6   int
		why, not string
	}{
		{netlink.LinkAttrs{}, 0, 0, "Linux 5.19", "Linux 5.19"},
		{netlink.LinkAttrs{TSOMaxSize: 1 << 19}, 0, most, "Linux 6.3", ""},
		{netlink.LinkAttrs{Name: "x", TSOMaxSize: 1 << 19, GSOIPv4MaxSize: usual}, most, most, "", ""},
		{netlink.LinkAttrs{Name: "x", TSOMaxSize: 100_000, GSOIPv4MaxSize: usual}, 100_000, 100_000, "", ""},
		{netlink.LinkAttrs{Name: "x", TSOMaxSize: usual, GSOIPv4MaxSize: usual}, 0, 0, "device x takes", "device x takes"},
	} {
		link := &netlink.GenericLink{LinkAttrs: test.at}
		v4, why4 := takes(link, true)
		v6, why6 := takes(link, false)
		if v4 != test.v4 || v6 != test.v6 || !strings.HasPrefix(why4, test.why) || !strings.HasPrefix(why6, test.not) || (why4 == "") != (v4 > 0) {
			t.Errorf("%+v: %d %q, %d %q", test.at, v4, why4, v6, why6)
		}
	}
}
