package devices

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// The names of pins: a program's name, then the device's index. Device names may change and may
// contain dots, which a bpf filesystem does not allow.
const (
	fromNetdev    = "tc_from_netdev"
	toNetdev      = "tc_to_netdev"
	xdpFromNetdev = "xdp_from_netdev"
	fromPod       = "tc_from_pod"
	toPod         = "tc_to_pod"
	fromLo        = "tc_from_lo"
	toLo          = "tc_to_lo"
	fromPair      = "tc_from_pacer"
)

func pinName(program string, index int) string { return program + "-" + strconv.Itoa(index) }

// indexOf returns the index of the device whose pin this is.
func indexOf(pin string) (index int, ok bool) {
	at := strings.LastIndexByte(pin, '-')
	index, err := strconv.Atoi(pin[at+1:])
	return index, at > 0 && err == nil
}

// switchError reports that a link still runs a program other than the one it should.
type switchError struct{ error }

// Unwrap returns the cause.
func (e *switchError) Unwrap() error { return e.error }

// attachPoint is where a link is attached to a device.
type attachPoint struct {
	program string
	index   int
	tc      ebpf.AttachType // 0 for XDP
}

func (p attachPoint) pin() string { return pinName(p.program, p.index) }

// holds reports whether a link is attached there. The kernel reports ifindex 0 if the link's device
// is gone.
func (p attachPoint) holds(info *link.Info) bool {
	if at := info.TCX(); at != nil {
		return p.tc != 0 && int(at.Ifindex) == p.index && uint32(at.AttachType) == uint32(p.tc)
	}
	if at := info.Netkit(); at != nil {
		// The ifindex is that of the pod's end, in the pod's namespace.
		return at.Ifindex != 0 && uint32(at.AttachType) == uint32(p.tc)
	}
	at := info.XDP()
	return at != nil && p.tc == 0 && int(at.Ifindex) == p.index
}

// ensure makes the pinned link at p run prog. If there is none it attaches one with add.
func (h *Hooks) ensure(p attachPoint, prog *ebpf.Program, add func() (link.Link, error)) error {
	info, err := h.openLink(p)
	if err != nil {
		return err
	}
	if info != nil {
		return h.updateLink(p, info, prog)
	}
	if h.links[p.pin()] != nil {
		h.mended++
		h.log.Warn("link is detached: attaching it again", "link", p.pin())
		if err := h.dropLink(p.pin()); err != nil {
			return err
		}
	}
	added, err := add()
	if err != nil {
		return fmt.Errorf("attach %s: %w", p.program, err)
	}
	if err := h.pinLink(p, added); err != nil {
		return errors.Join(err, added.Close())
	}
	h.links[p.pin()] = added
	return nil
}

// openLink returns the kernel's information about the link at p, nil if there is none.
func (h *Hooks) openLink(p attachPoint) (*link.Info, error) {
	pin := p.pin()
	l := h.links[pin]
	if l == nil {
		pinned, err := link.LoadPinnedLink(filepath.Join(h.dir, pin), nil)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, &switchError{fmt.Errorf("open link %s: %w", filepath.Join(h.dir, pin), err)}
		}
		l = pinned
		h.links[pin] = l
	}
	info, err := l.Info()
	if err != nil {
		return nil, &switchError{fmt.Errorf("inspect link %s: %w", pin, err)}
	}
	if !p.holds(info) {
		return nil, nil
	}
	return info, nil
}

// updateLink makes an attached link run prog, and pins it again if its pin is gone.
func (h *Hooks) updateLink(p attachPoint, info *link.Info, prog *ebpf.Program) error {
	l := h.links[p.pin()]
	id, err := programID(prog)
	if err != nil {
		return err
	}
	if info.Program != id {
		if err := l.Update(prog); err != nil {
			return &switchError{fmt.Errorf("update link %s: %w", p.pin(), err)}
		}
	}
	if _, err := os.Lstat(filepath.Join(h.dir, p.pin())); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	h.log.Warn("link is not pinned: pinning it again", "link", p.pin())
	if err := l.Unpin(); err != nil { // the library remembers the old pin
		return fmt.Errorf("pin link %s: %w", p.pin(), err)
	}
	return h.pinLink(p, l)
}

func (h *Hooks) pinLink(p attachPoint, l link.Link) error {
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return fmt.Errorf("create pin directory: %w", err)
	}
	if err := l.Pin(filepath.Join(h.dir, p.pin())); err != nil {
		return fmt.Errorf("pin link %s: %w", p.pin(), err)
	}
	return nil
}

// dropLink detaches and unpins a link, which need not exist.
func (h *Hooks) dropLink(pin string) error {
	l := h.links[pin]
	delete(h.links, pin)
	if l == nil {
		pinned, err := link.LoadPinnedLink(filepath.Join(h.dir, pin), nil)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("open link %s: %w", filepath.Join(h.dir, pin), err)
		}
		l = pinned
	}
	defer l.Close()
	// Removing the pin would detach it too, but only some time later.
	if err := l.Detach(); err != nil && !errors.Is(err, link.ErrNotSupported) {
		return fmt.Errorf("detach link %s: %w", pin, err)
	}
	if err := os.Remove(filepath.Join(h.dir, pin)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin link %s: %w", pin, err)
	}
	return nil
}

// pinned returns the names of the pins.
func pinned(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if !entry.IsDir() { // filtersMark
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// removeOthers detaches the programs from all devices that are not in keep.
func (h *Hooks) removeOthers(keep map[int]bool) error {
	names, err := pinned(h.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if index, ok := indexOf(name); ok && keep[index] {
			continue
		}
		errs = append(errs, h.dropLink(name))
	}
	gone := !h.swept
	for index, state := range h.states {
		if keep[index] {
			continue
		}
		if !state.inside() {
			h.log.Info("detached programs from a device", "device", state.Name)
		}
		delete(h.states, index)
		delete(h.refused, index)
		gone = true
	}
	if gone {
		rtnl, err := h.handle()
		if err == nil {
			err = removeFilters(rtnl, h.dir, keep)
		}
		errs = append(errs, err)
	}
	err = errors.Join(errs...)
	h.swept = h.swept || err == nil
	return err
}

func programID(prog *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := prog.Info()
	if err != nil {
		return 0, fmt.Errorf("inspect program: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, errors.New("inspect program: the kernel does not report its id")
	}
	return id, nil
}

// Cleanup detaches all links pinned in dir and removes the pins, and removes fairlead's filters in
// this network namespace. Nothing of this need exist.
func Cleanup(dir string) error {
	h := New(dir, Off, nil)
	names, err := pinned(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := h.dropLink(name); err != nil {
			return err
		}
	}
	rtnl, err := h.handle()
	if err != nil {
		return err
	}
	return errors.Join(removeFilters(rtnl, dir, nil), h.Close())
}
