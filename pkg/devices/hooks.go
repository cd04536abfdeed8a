package devices

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Programs are the programs to attach to devices. A device whose programs are nil gets none.
type Programs struct {
	FromNetdev, ToNetdev *ebpf.Program // at tc
	FromTunnel           *ebpf.Program // takes FromNetdev's place at the device that leads to the pods of other nodes
	XDP                  *ebpf.Program // nil if it is not used
	FromPod, ToPod       *ebpf.Program // at tc of pods' devices; nil if there are no pods
	FromLo, ToLo         *ebpf.Program // at tc of the loopback device; nil if no pod may have a proxy
	// FromPair is for tc of the device that delivers rate-limited packets; nil if there is none.
	FromPair *ebpf.Program
}

// List returns the programs that are not nil.
func (p Programs) List() []*ebpf.Program {
	all := []*ebpf.Program{p.FromNetdev, p.ToNetdev, p.FromTunnel, p.XDP, p.FromPod, p.ToPod, p.FromLo, p.ToLo, p.FromPair}
	return slices.DeleteFunc(all, func(prog *ebpf.Program) bool { return prog == nil })
}

// Close closes the programs. Links keep them attached.
func (p Programs) Close() error {
	var errs []error
	for _, prog := range p.List() {
		if err := prog.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close program: %w", err))
		}
	}
	return errors.Join(errs...)
}

// State says what is attached to a device.
type State struct {
	Device
	TC     string // "tcx", "clsact" or "netkit"; "" if a program is missing
	XDP    string // "native" or "generic"; "" if there is none
	XDPWhy string // why there is none, or it is generic
	Err    error  // why something could not be attached; it is tried again
}

// Hooks keeps programs attached to devices. It pins the links in a directory, so that the programs
// stay attached when the process ends and the next process takes them over. Where tc has no links,
// Hooks uses filters, which stay by themselves. It is not safe for concurrent use.
type Hooks struct {
	dir  string
	mode Mode
	log  *slog.Logger

	programs Programs
	rtnl     *netlink.Handle      // opened when first needed; without it each request would open a socket
	links    map[string]link.Link // by pin name
	states   map[int]*State
	refused  map[int]refusal
	classic  bool                       // the kernel has no links at tc
	unfilter bool                       // the kernel has no BPF filters, or no qdisc for them
	filters  func(Device, []side) error // attachFilters; tests replace it to act as a kernel without filters
	swept    bool                       // removed the filters that an earlier process left behind
	mended   uint64
}

// New returns Hooks whose links are pinned in dir, which is created when needed.
func New(dir string, mode Mode, log *slog.Logger) *Hooks {
	h := &Hooks{
		dir: dir, mode: mode, log: log,
		links: map[string]link.Link{}, states: map[int]*State{}, refused: map[int]refusal{},
	}
	h.filters = h.attachFilters
	return h
}

// handle returns the rtnetlink socket for requests about filters.
func (h *Hooks) handle() (*netlink.Handle, error) {
	if h.rtnl == nil {
		rtnl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return nil, fmt.Errorf("open rtnetlink socket: %w", err)
		}
		h.rtnl = rtnl
	}
	return h.rtnl, nil
}

// States returns what is attached to each device through which packets come from outside, sorted by
// index.
func (h *Hooks) States() []State { return h.list(func(s *State) bool { return !s.inside() }) }

// LoopbackState returns what is attached to the loopback device, nil if nothing should be.
func (h *Hooks) LoopbackState() *State { return h.only(func(s *State) bool { return s.Loopback }) }

// PairState returns what is attached to the device that delivers rate-limited packets, nil if
// nothing should be.
func (h *Hooks) PairState() *State { return h.only(func(s *State) bool { return s.Pair }) }

func (h *Hooks) only(is func(*State) bool) *State {
	for _, s := range h.list(is) {
		return &s
	}
	return nil
}

// PodStates returns what is attached to pods' devices.
func (h *Hooks) PodStates() []State { return h.list(func(s *State) bool { return s.Pod }) }

func (h *Hooks) list(of func(*State) bool) []State {
	var list []State
	for _, index := range slices.Sorted(maps.Keys(h.states)) {
		if s := h.states[index]; of(s) {
			list = append(list, *s)
		}
	}
	return list
}

// Mended returns how often an attached program was found detached and attached again.
func (h *Hooks) Mended() uint64 { return h.mended }

// Sync makes these devices, and no others, run the programs. It updates existing links, so there is
// no moment without a program. A program that cannot be attached shows in States and does not keep
// the others from being attached. The error reports attached programs that could not be replaced or
// detached, and so may go on using maps that nothing updates any more. The caller still owns the
// programs and must not close them before the next call.
func (h *Hooks) Sync(want []Device, programs Programs) error {
	there := map[int]bool{}
	for _, d := range want {
		there[d.Index] = programs.serve(d)
	}
	return errors.Join(h.removeOthers(there), h.Run(want, programs))
}

// Run is Sync for an incomplete list of devices: others keep what an earlier process attached.
func (h *Hooks) Run(want []Device, programs Programs) error {
	var errs []error
	for _, d := range want {
		if !programs.serve(d) {
			continue
		}
		if err := h.attach(d, programs); !errors.Is(err, unix.ENODEV) { // the device is gone
			errs = append(errs, err)
		}
	}
	h.programs = programs
	return errors.Join(errs...)
}

// Add attaches the programs to one more device.
func (h *Hooks) Add(d Device) error {
	if !h.programs.serve(d) {
		return nil
	}
	err := h.attach(d, h.programs)
	if state := h.states[d.Index]; state != nil {
		err = errors.Join(err, state.Err)
	}
	return err
}

// Remove detaches the programs from a device, which may be gone.
func (h *Hooks) Remove(d Device) error {
	delete(h.states, d.Index)
	var errs []error
	for _, s := range h.programs.sides(d) {
		errs = append(errs, h.dropLink(pinName(s.program, d.Index)))
	}
	if h.isClassic(d) {
		rtnl, err := h.handle()
		if err == nil {
			err = removeFiltersOf(rtnl, d.Index)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Switch makes every device run other programs. If it fails, all run the previous ones.
func (h *Hooks) Switch(programs Programs) error {
	old := h.programs
	var list []Device
	for _, s := range h.list(func(*State) bool { return true }) {
		list = append(list, s.Device)
	}
	err := h.Sync(list, programs)
	if err == nil {
		return nil
	}
	return errors.Join(err, h.Sync(list, old))
}

// Close closes the links, which stay attached.
func (h *Hooks) Close() error {
	var errs []error
	for pin, l := range h.links {
		if err := l.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close link %s: %w", pin, err))
		}
	}
	clear(h.links)
	clear(h.states)
	if h.rtnl != nil {
		h.rtnl.Close()
		h.rtnl = nil
	}
	return errors.Join(errs...)
}

// attach attaches the programs to one device and records its State. If the device is gone it has no
// State, and the error is ENODEV.
func (h *Hooks) attach(d Device, programs Programs) error {
	state := h.states[d.Index]
	fresh := state == nil
	if fresh {
		state = &State{}
		h.states[d.Index] = state
	}
	was := *state
	*state = State{Device: d, TC: was.TC}
	kind, err := h.attachTC(d, programs)
	if errors.Is(err, unix.ENODEV) {
		delete(h.states, d.Index)
		return fmt.Errorf("device %s: %w", d.Name, err)
	}
	stale := errors.As(err, new(*switchError))
	state.TC, state.Err = kind, err
	if !d.inside() {
		xdp, why, err := h.attachXDP(d, programs.XDP)
		stale = stale || errors.As(err, new(*switchError))
		state.XDP, state.XDPWhy, state.Err = xdp, why, errors.Join(state.Err, err)
	}
	h.logState(fresh, &was, state)
	if stale {
		return fmt.Errorf("device %s: %w", d.Name, state.Err)
	}
	return nil
}

func (h *Hooks) logState(fresh bool, was, now *State) {
	text := func(err error) string {
		if err == nil {
			return ""
		}
		return err.Error()
	}
	switch {
	case now.Err != nil && text(was.Err) != text(now.Err):
		h.log.Error("cannot attach programs to a device: trying again", "device", now.Name, "error", now.Err)
	case fresh && now.inside():
		h.log.Debug("attached programs to a device", "device", now.Name, "tc", now.TC)
	case fresh:
		h.log.Info("attached programs to a device", "device", now.Name, "why", now.Why, "tc", now.TC, "xdp", now.XDP, "xdp-why", now.XDPWhy)
	case was.TC != now.TC || was.XDP != now.XDP || was.Name != now.Name || now.Err == nil && was.Err != nil:
		h.log.Info("changed the programs of a device", "device", now.Name, "was", was.Name, "tc", now.TC, "xdp", now.XDP, "xdp-why", now.XDPWhy)
	}
}
