package devices

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// program loads a program that passes every packet.
func program(t *testing.T, kind ebpf.ProgramType) *ebpf.Program {
	t.Helper()
	next := int32(-1)
	if kind == ebpf.XDP {
		next = 2
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: kind, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, next), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog
}

func threePrograms(t *testing.T) Programs {
	return Programs{FromNetdev: program(t, ebpf.SchedCLS), ToNetdev: program(t, ebpf.SchedCLS), XDP: program(t, ebpf.XDP)}
}

// host is a node with eth0 and eth1, whose peers are in another namespace.
type host struct {
	t     *testing.T
	ns    *rig.Netns
	dir   string
	hooks *Hooks
}

func newHost(t *testing.T) *host {
	rig.Root(t)
	h := &host{t: t, ns: rig.NewNetns(t, "node"), dir: filepath.Join(rig.BPFFS(t), "devices")}
	elsewhere := rig.NewNetns(t, "elsewhere")
	for _, name := range []string{"eth0", "eth1"} {
		rig.Veth(t, h.ns, name, elsewhere, name)
	}
	t.Cleanup(func() {
		h.must(Cleanup(h.dir))
	})
	return h
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) do(fn func() error) {
	h.t.Helper()
	h.must(h.ns.Do(fn))
}

// start replaces h.hooks, as an agent that restarts does.
func (h *host) start(mode Mode, classic bool) {
	h.t.Helper()
	if h.hooks != nil {
		h.must(h.hooks.Close())
	}
	h.hooks = New(h.dir, mode, slog.New(slog.NewTextHandler(h.t.Output(), nil)))
	h.hooks.classic = classic
	h.t.Cleanup(func() { h.must(h.hooks.Close()) })
}

// sync calls Sync with the named devices.
func (h *host) sync(programs Programs, names ...string) []State {
	h.t.Helper()
	h.do(func() error {
		var list []Device
		for _, name := range names {
			d, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			list = append(list, candidateOf(d).Device)
		}
		return h.hooks.Sync(list, programs)
	})
	return h.hooks.States()
}

// attached returns the ids of the programs at a device's tc ingress.
func (h *host) attached(name string) (ids []ebpf.ProgramID) {
	h.t.Helper()
	h.do(func() error {
		device, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		found, err := link.QueryPrograms(link.QueryOptions{Target: device.Index, Attach: ebpf.AttachTCXIngress})
		if err != nil && !errors.Is(err, ebpf.ErrNotSupported) {
			return err
		}
		if err == nil {
			for _, p := range found.Programs {
				ids = append(ids, p.ID)
			}
		}
		filters, err := filtersOf(&netlink.Handle{}, device.Index, netlink.HANDLE_MIN_INGRESS)
		for _, f := range filters {
			ids = append(ids, ebpf.ProgramID(f.(*netlink.BpfFilter).Id))
		}
		return err
	})
	return ids
}

func (h *host) wantAttached(when, name string, progs ...*ebpf.Program) {
	h.t.Helper()
	have := h.attached(name)
	if len(have) != len(progs) {
		h.t.Fatalf("%s: %s runs %v, want %d programs", when, name, have, len(progs))
	}
	for i, prog := range progs {
		if id, err := programID(prog); err != nil || have[i] != id {
			h.t.Errorf("%s: %s runs %v, want %d at %d: %v", when, name, have, id, i, err)
		}
	}
}

func (h *host) hasTCX() bool {
	first := threePrograms(h.t)
	return h.sync(first, "eth1")[0].TC == "tcx"
}

// Programs are attached, replaced in place by the next process, attached again after somebody
// detached them, and removed when their device no longer should have them. Programs that others
// attached are left alone.
func TestHooks(t *testing.T) {
	for _, classic := range []bool{false, true} {
		name := map[bool]string{false: "links", true: "filters"}[classic]
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.start(Off, classic)
			if !classic && !h.hasTCX() {
				rig.Lacking(t, "tcx", "this kernel has no links at tc, which came with Linux 6.6")
			}
			other := program(t, ebpf.SchedCLS)
			h.do(func() error { return attachOther(h.t, "eth0", other, classic) })
			first, second := threePrograms(t), threePrograms(t)
			if states := h.sync(first, "eth0", "eth1"); len(states) != 2 || states[0].TC == "" || states[0].Err != nil || states[0].XDPWhy != "off" {
				t.Fatalf("states: %+v", states)
			}
			ours := func(p Programs) []*ebpf.Program {
				if classic { // the other filter has priority 1
					return []*ebpf.Program{other, p.FromNetdev}
				}
				return []*ebpf.Program{p.FromNetdev, other}
			}
			h.wantAttached("at first", "eth0", ours(first)...)
			h.wantAttached("at first", "eth1", first.FromNetdev)

			h.start(Off, classic)
			h.sync(second, "eth0", "eth1")
			h.wantAttached("after a start", "eth0", ours(second)...)
			h.wantAttached("after a start", "eth1", second.FromNetdev)
			if h.hooks.Mended() != 0 {
				t.Errorf("Mended is %d although nothing was wrong", h.hooks.Mended())
			}

			h.do(func() error { return takeAway(h.hooks, "eth1", classic) })
			h.wantAttached("taken away", "eth1")
			h.sync(second, "eth0", "eth1")
			h.wantAttached("mended", "eth1", second.FromNetdev)
			if h.hooks.Mended() == 0 {
				t.Error("Mended does not count it")
			}

			h.sync(second, "eth0")
			h.wantAttached("no longer wanted", "eth1")
			h.do(func() error { return Cleanup(h.dir) })
			h.wantAttached("cleaned up", "eth0", other)
			if left, err := pinned(h.dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %q, %v", left, err)
			}
		})
	}
}

// On a kernel without filters, pods' devices get links, and Remove leaves none behind. Other errors
// of filters are returned.
func TestPodsWithoutFilters(t *testing.T) {
	h := newHost(t)
	h.start(Off, false)
	if !h.hasTCX() {
		rig.Lacking(t, "tcx", "this kernel has no links at tc, which came with Linux 6.6")
	}
	tried, refusal := 0, error(unix.ENOMEM)
	h.hooks.filters = func(Device, []side) error {
		tried++
		return fmt.Errorf("add qdisc clsact: %w", refusal)
	}
	programs := Programs{FromPod: program(t, ebpf.SchedCLS), ToPod: program(t, ebpf.SchedCLS)}
	var pods []Device
	h.do(func() error {
		for _, name := range []string{"eth0", "eth1"} {
			device, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			pods = append(pods, Device{Index: device.Index, Name: name, Pod: true})
		}
		return h.hooks.Sync(nil, programs)
	})
	add := func(d Device) (err error) {
		h.do(func() error { err = h.hooks.Add(d); return nil })
		return err
	}
	if err := add(pods[0]); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("without memory: %v", err)
	}
	h.wantAttached("without memory", "eth0")
	for _, refusal = range []error{unix.ENOENT, unix.EOPNOTSUPP} {
		h.hooks.unfilter = false
		tried = 0
		for _, d := range pods {
			h.must(add(d))
			h.wantAttached("without filters", d.Name, programs.FromPod)
		}
		if states := h.hooks.PodStates(); tried != 1 || len(states) != 2 || states[0].TC != "tcx" || states[1].TC != "tcx" {
			t.Errorf("tried %d times: %+v", tried, states)
		}
		for _, d := range pods {
			h.do(func() error { return h.hooks.Remove(d) })
			h.wantAttached("removed", d.Name)
		}
	}
}

func attachOther(t *testing.T, name string, prog *ebpf.Program, classic bool) error {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	if !classic {
		attached, err := link.AttachTCX(link.TCXOptions{Interface: device.Index, Program: prog, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	}
	return errors.Join(netlink.QdiscReplace(clsact(device.Index)), netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: device.Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		Fd: prog.FD(), Name: "other", DirectAction: true,
	}))
}

// takeAway detaches our programs, as an administrator can.
func takeAway(h *Hooks, name string, classic bool) error {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	if classic {
		return removeFiltersOf(&netlink.Handle{}, device.Index)
	}
	var errs []error
	for _, s := range h.programs.sides(h.states[device.Index].Device) {
		errs = append(errs, h.links[pinName(s.program, device.Index)].Detach())
	}
	return errors.Join(errs...)
}

// A pin that somebody removed is created again, for the same link.
func TestLostPin(t *testing.T) {
	h := newHost(t)
	h.start(Off, false)
	if !h.hasTCX() {
		rig.Lacking(t, "tcx", "this kernel has no links at tc, which came with Linux 6.6")
	}
	programs := threePrograms(t)
	h.sync(programs, "eth0")
	pins, err := pinned(h.dir)
	if err != nil || len(pins) != 2 {
		t.Fatalf("pins: %q, %v", pins, err)
	}
	for _, pin := range pins {
		h.must(os.Remove(filepath.Join(h.dir, pin)))
	}
	h.sync(programs, "eth0")
	if again, err := pinned(h.dir); err != nil || len(again) != 2 {
		t.Errorf("pins: %q, %v", again, err)
	}
	h.wantAttached("pinned again", "eth0", programs.FromNetdev)
}

// XDP runs where it can, and the states say where it does not and why.
func TestXDPModes(t *testing.T) {
	h := newHost(t)
	programs := threePrograms(t)
	for _, step := range []struct {
		mode     Mode
		how, why string
	}{
		{Native, "native", ""},
		{Native, "native", ""},
		{Generic, "generic", "asked for"},
		{Native, "native", ""},
		{Auto, "", "packets on a veth have no checksum yet, which XDP cannot complete"},
		{Off, "", "off"},
	} {
		h.start(step.mode, false)
		state := h.sync(programs, "eth0")[0]
		if state.XDP != step.how || state.XDPWhy != step.why || state.Err != nil || state.TC == "" {
			t.Errorf("%s: %+v", step.mode, state)
		}
		var mode uint32
		h.do(func() error {
			device, err := netlink.LinkByName("eth0")
			if err == nil && device.Attrs().Xdp != nil {
				mode = device.Attrs().Xdp.AttachMode
			}
			return err
		})
		if want := map[string]uint32{"native": attachedDriver, "generic": attachedStack}[step.how]; mode != want {
			t.Errorf("%s: the kernel reports mode %d, want %d", step.mode, mode, want)
		}
	}
	h.do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		other, err := link.AttachXDP(link.XDPOptions{Program: programs.XDP, Interface: device.Index, Flags: link.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { other.Close() })
		}
		return err
	})
	h.start(Native, false)
	if state := h.sync(programs, "eth0")[0]; state.Err == nil || state.XDPWhy != "another XDP program is attached" || state.TC == "" {
		t.Errorf("with another XDP program attached: %+v", state)
	}
}

// Without also gives the reason for devices that a test cannot create.
func TestWithoutXDP(t *testing.T) {
	for _, test := range []struct {
		mode   Mode
		device Device
		why    string
	}{
		{Auto, Device{Kind: "device"}, ""},
		{Auto, Device{Kind: "device", VLANs: true}, "VLANs sit on the device, and a driver may hide their tags from XDP"},
		{Native, Device{Kind: "device", VLANs: true}, ""},
		{Auto, Device{Kind: "tuntap"}, "packets on a tap may have no checksum yet, which XDP cannot complete"},
		{Auto, Device{Kind: "bond"}, "packets come in through the members of a bond, where XDP does not see the bond"},
		{Native, Device{Kind: "bond"}, "packets come in through the members of a bond, where XDP does not see the bond"},
		{Generic, Device{Kind: "bond"}, ""},
		{Generic, Device{Kind: "vxlan", Tunnel: true}, "packets come out of a tunnel long after XDP"},
	} {
		if why := New("", test.mode, slog.Default()).without(test.device, &ebpf.Program{}); why != test.why {
			t.Errorf("%s, %+v: %q, want %q", test.mode, test.device, why, test.why)
		}
	}
}

// FindTunnel finds the tunnel once it exists, with addresses that the kernel would not choose as
// source addresses.
func TestFindTunnel(t *testing.T) {
	h := newHost(t)
	find := func(name string) (d Device) {
		h.do(func() (err error) {
			d, err = FindTunnel(name)
			return err
		})
		return d
	}
	if d := find("tunnel0"); d.Index != 0 {
		t.Errorf("found before it exists: %+v", d)
	}
	const old = unix.IFA_F_NODAD | unix.IFA_F_DEPRECATED
	h.do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addr4 := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 1, 0, 0), Mask: net.CIDRMask(32, 32)}, Scope: unix.RT_SCOPE_LINK}
		addr6 := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("fd00:1::"), Mask: net.CIDRMask(128, 128)}, Flags: old, ValidLft: 1<<32 - 1}
		return errors.Join(netlink.AddrAdd(eth0, addr4), netlink.AddrAdd(eth0, addr6))
	})
	d := find("eth0")
	if want4, want6 := netip.MustParseAddr("10.1.0.0"), netip.MustParseAddr("fd00:1::"); d.Index == 0 || !d.Tunnel || d.Addr4 != want4 || d.Addr6 != want6 {
		t.Errorf("found %+v, want %s and %s", d, want4, want6)
	}
}

// The loopback device has its own programs in both directions, if there are any. It is not among
// the devices that lead outside.
func TestLoopback(t *testing.T) {
	for _, classic := range []bool{false, true} {
		t.Run(map[bool]string{false: "links", true: "filters"}[classic], func(t *testing.T) {
			h := newHost(t)
			h.start(Off, classic)
			if !classic && !h.hasTCX() {
				rig.Lacking(t, "tcx", "this kernel has no links at tc, which came with Linux 6.6")
			}
			lo := []Device{{Index: 1, Name: "lo", Loopback: true}}
			first, second := threePrograms(t), threePrograms(t)
			sync := func(want []Device, programs Programs) {
				t.Helper()
				h.do(func() error { return h.hooks.Sync(want, programs) })
			}
			sync(lo, first) // has no programs for lo
			h.wantAttached("without programs", "lo")
			if state := h.hooks.LoopbackState(); state != nil {
				t.Errorf("without programs: %+v", state)
			}
			first.FromLo, first.ToLo = program(t, ebpf.SchedCLS), program(t, ebpf.SchedCLS)
			second.FromLo, second.ToLo = program(t, ebpf.SchedCLS), program(t, ebpf.SchedCLS)
			sync(lo, first)
			h.wantAttached("at first", "lo", first.FromLo)
			if state := h.hooks.LoopbackState(); state == nil || state.TC == "" || state.Err != nil || len(h.hooks.States()) != 0 {
				t.Errorf("states: %+v, %+v", state, h.hooks.States())
			}
			h.do(func() error { return h.hooks.Switch(second) })
			h.wantAttached("switched", "lo", second.FromLo)
			h.do(func() error { return takeAway(h.hooks, "lo", classic) })
			h.wantAttached("taken away", "lo")
			sync(lo, second)
			h.wantAttached("mended", "lo", second.FromLo)
			sync(nil, second)
			h.wantAttached("no longer wanted", "lo")
			if state := h.hooks.LoopbackState(); state != nil {
				t.Errorf("no longer wanted: %+v", state)
			}
		})
	}
}
