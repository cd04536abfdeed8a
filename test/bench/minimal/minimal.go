// Package minimal has yardsticks: programs that do the least anybody can do for a job, for traffic of TCP and UDP in
// both families, and are right nevertheless. What fairlead's own programs cost is judged by how much more they cost than
// these. They know one service, whose facts are constants, and look for nothing that may go wrong.
//
// Everything is loaded and attached with the agent's capabilities, so the verifier treats it as it treats the agent's.
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

// Attached is programs that are loaded and attached. It ends with Close.
type Attached struct{ parts []io.Closer }

// Close detaches the programs and lets go of them and their maps.
func (a *Attached) Close() error {
	var errs []error
	for i := len(a.parts) - 1; i >= 0; i-- { // links first
		errs = append(errs, a.parts[i].Close())
	}
	a.parts = nil
	return errors.Join(errs...)
}

// keep makes Close close something.
func (a *Attached) keep(part io.Closer) { a.parts = append(a.parts, part) }

// attach attaches a program to a device in the namespace of the calling thread.
func (a *Attached) attach(program *ebpf.Program, ifindex int) error {
	var l link.Link
	var err error
	if program.Type() == ebpf.XDP {
		l, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: ifindex, Flags: link.XDPDriverMode})
	} else {
		l, err = link.AttachTCX(link.TCXOptions{Program: program, Interface: ifindex, Attach: ebpf.AttachTCXIngress})
		if errors.Is(err, ebpf.ErrNotSupported) {
			err = fmt.Errorf("%w (it takes Linux 6.6)", err)
		}
	}
	if err != nil {
		return fmt.Errorf("attach %s to device %d: %w", program, ifindex, err)
	}
	a.keep(l)
	return nil
}

// within runs fn with the agent's capabilities in a namespace.
func within(ns *rig.Netns, fn func() error) error {
	return ns.Do(func() error { return limited.Do(fn) })
}

// Pair is a frontend and its one backend, of the same family.
type Pair struct{ Frontend, Backend netip.AddrPort }

// check refuses a pair of two families.
func (p Pair) check() error {
	if !p.Frontend.IsValid() || !p.Backend.IsValid() || p.Frontend.Addr().Is4() != p.Backend.Addr().Is4() {
		return fmt.Errorf("%s and %s are no pair: they need a family in common", p.Frontend, p.Backend)
	}
	return nil
}

// Hop is where a packet goes next: the device that it leaves by, and the hardware addresses of both ends of the wire.
type Hop struct {
	Ifindex int
	Local   net.HardwareAddr
	Remote  net.HardwareAddr
}
