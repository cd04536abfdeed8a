// Package minimal contains yardsticks: programs that do the least possible for a job, for TCP and
// UDP traffic of both families, and still do it correctly. The cost of fairlead's own programs is
// judged relative to theirs. They know one service, whose properties are constants, and handle no
// errors.
//
// Everything is loaded and attached with the agent's capabilities, so that the verifier treats it
// like the agent's programs.
package minimal

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"fairlead.io/fairlead/test/bench/minimal/limited"
	"fairlead.io/fairlead/test/rig"
)

// Attached is a set of loaded and attached programs. Close detaches them.
type Attached struct{ parts []io.Closer }

// Close detaches the programs, and closes them and their maps.
func (a *Attached) Close() error {
	var errs []error
	for i := len(a.parts) - 1; i >= 0; i-- { // links first
		errs = append(errs, a.parts[i].Close())
	}
	a.parts = nil
	return errors.Join(errs...)
}

// own adds a part for Close to close.
func (a *Attached) own(part io.Closer) { a.parts = append(a.parts, part) }

// attach attaches a program to a device in the namespace of the calling thread.
func (a *Attached) attach(program *ebpf.Program, ifindex int) error {
	var l link.Link
	var err error
	if program.Type() == ebpf.XDP {
		l, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: ifindex, Flags: link.XDPDriverMode})
	} else {
		l, err = link.AttachTCX(link.TCXOptions{Program: program, Interface: ifindex, Attach: ebpf.AttachTCXIngress})
		if errors.Is(err, ebpf.ErrNotSupported) {
			err = fmt.Errorf("%w (needs Linux 6.6)", err)
		}
	}
	if err != nil {
		return fmt.Errorf("attach %s to device %d: %w", program, ifindex, err)
	}
	a.own(l)
	return nil
}

// within runs fn in a namespace with the agent's capabilities.
func within(ns *rig.Netns, fn func() error) error {
	return ns.Do(func() error { return limited.Do(fn) })
}

// Pair is a frontend with its only backend, of the same family.
type Pair struct{ Frontend, Backend netip.AddrPort }

// check rejects pairs of different families.
func (p Pair) check() error {
	if !p.Frontend.IsValid() || !p.Backend.IsValid() || p.Frontend.Addr().Is4() != p.Backend.Addr().Is4() {
		return fmt.Errorf("%s and %s are no pair: they must be of the same family", p.Frontend, p.Backend)
	}
	return nil
}

// Hop is where a packet goes next: the device that it leaves by, and the hardware addresses of both
// ends of the wire.
type Hop struct {
	Ifindex int
	Local   net.HardwareAddr
	Remote  net.HardwareAddr
}
