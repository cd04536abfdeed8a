package devices

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Watch notices every change of a device within a second.
func TestWatch(t *testing.T) {
	h := newHost(t)
	if err := h.ns.SetSysctl("net/ipv6/conf/all/disable_ipv6", "1"); err != nil { // it causes events of its own
		t.Fatal(err)
	}
	filter, err := ParseFilter("auto")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan []Device, 64)
	again := make(chan struct{}, 1)
	isPod := func(name string) bool { return name == "pod0" }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- h.ns.Do(func() error {
			return Watch(ctx, slog.New(slog.NewTextHandler(t.Output(), nil)), isPod, again, func() error {
				found, err := Detect(filter, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
				seen <- found
				return err
			})
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	wait := func(what string, fits func([]Device) bool) {
		t.Helper()
		late := time.After(time.Second)
		for {
			select {
			case found := <-seen:
				if fits(found) {
					return
				}
			case <-late:
				t.Fatalf("%s: not seen within a second", what)
			}
		}
	}
	// A look that is still due would see the next step's change without any event of it.
	settle := func() {
		for {
			select {
			case <-seen:
			case <-time.After(3 * scanApart):
				return
			}
		}
	}
	one := func(name string, mtu int) func([]Device) bool {
		return func(found []Device) bool { return len(found) == 1 && found[0].Name == name && found[0].MTU == mtu }
	}
	device := func() netlink.Link {
		d, err := netlink.LinkByName("eth0")
		if err != nil {
			t.Error(err)
		}
		return d
	}
	wait("the start", func(found []Device) bool { return len(found) == 0 })
	for _, step := range []struct {
		what string
		do   func() error
		fits func([]Device) bool
	}{
		{"an address", func() error {
			return netlink.AddrAdd(device(), &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}})
		}, one("eth0", 1500)},
		{"an MTU", func() error { return netlink.LinkSetMTU(device(), 1400) }, one("eth0", 1400)},
		{"a hardware address", func() error { return netlink.LinkSetHardwareAddr(device(), net.HardwareAddr{2, 0, 0, 0, 0, 9}) },
			func(found []Device) bool { return len(found) == 1 && found[0].MAC == [6]byte{2, 0, 0, 0, 0, 9} }},
		{"a default route", func() error {
			return netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(192, 0, 2, 254), Table: unix.RT_TABLE_MAIN})
		}, func(found []Device) bool { return one("eth0", 1400)(found) && found[0].Default4 }},
		{"another device", func() error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "br.5"
			bridge := &netlink.Bridge{LinkAttrs: attrs}
			if err := netlink.LinkAdd(bridge); err != nil {
				return err
			}
			return errors.Join(netlink.LinkSetUp(bridge), netlink.RouteAdd(&netlink.Route{
				LinkIndex: bridge.Index, Scope: netlink.SCOPE_LINK, Priority: 5, Table: unix.RT_TABLE_MAIN,
				Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)},
			}))
		}, func(found []Device) bool { return len(found) == 2 && found[1].Kind == "bridge" && found[1].Default4 }},
		{"a name", func() error { return netlink.LinkSetName(device(), "up0") },
			func(found []Device) bool {
				return slices.ContainsFunc(found, func(d Device) bool { return d.Name == "up0" })
			}},
		{"the end of a device", func() error {
			d, err := netlink.LinkByName("up0")
			if err != nil {
				return err
			}
			return netlink.LinkDel(d)
		}, one("br.5", 1500)},
		{"a word", func() error { again <- struct{}{}; return nil }, one("br.5", 1500)},
	} {
		settle()
		h.do(step.do)
		wait(step.what, step.fits)
	}
	// A pod's device that comes and goes causes no look.
	settle()
	h.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "pod0"
		pod := &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(pod); err != nil {
			return err
		}
		local := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("fe80::5"), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}
		return errors.Join(os.WriteFile("/proc/sys/net/ipv6/conf/pod0/disable_ipv6", []byte("0"), 0o644),
			netlink.LinkSetUp(pod), netlink.AddrAdd(pod, local), netlink.LinkDel(pod))
	})
	select {
	case <-seen:
		t.Error("a pod's device caused a look")
	case <-time.After(3 * scanApart):
	}
}
