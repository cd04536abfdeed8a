package frames

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/link"

	"fairlead.io/fairlead/test/rig"
)

// Pass is a program on a device that passes every packet.
type Pass struct {
	objects framesObjects
	link    link.Link
}

// AttachPass attaches such a program to a device of a namespace. A veth whose peer sends back what
// came in needs one: GRO alone makes it take frames that are redirected to it, but frames that its
// peer sends back stay in its queue until others come.
func AttachPass(ns *rig.Netns, ifindex int) (*Pass, error) {
	p := &Pass{}
	if err := loadFramesObjects(&p.objects, nil); err != nil {
		return nil, fmt.Errorf("load frame programs: %w", err)
	}
	err := ns.Do(func() (err error) {
		p.link, err = link.AttachXDP(link.XDPOptions{Interface: ifindex, Program: p.objects.XdpPass, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach to device %d: %w", ifindex, err), p.objects.Close())
	}
	return p, nil
}

// Close detaches the program.
func (p *Pass) Close() error { return errors.Join(p.link.Close(), p.objects.Close()) }
