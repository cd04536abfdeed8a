package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	stdnet "net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/bench/frames"
	"fairlead.io/fairlead/test/bench/minimal/limited"
	nodes "fairlead.io/fairlead/test/rig"
)

// pair is two pods of a node, the first of which sends datagrams to the second, and the program at their
// devices.
type pair struct {
	program  *ebpf.Program
	netns    *nodes.Netns
	undo     []func() error
	receiver uint32 // index of the second pod's device
	request  []byte // from the first port
	answer   []byte
	flow     int
}

const (
	// sender is the index of the first pod's device: that on which test runs come in.
	sender = 1
	// What the program returns for a packet that it sends on to a pod, and for one that it drops.
	redirected, dropped = 7, 2
	portsAt             = 14 + 20 // in a packet
	firstPort, allPorts = 1024, 1<<16 - 1024
)

// newPair loads the program for these pods. The maps need the rest of them.
func newPair(m *maps.Maps, from, to netip.Addr) (_ *pair, err error) {
	p := &pair{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.netns, err = nodes.CreateNetns("pods"); err != nil {
		return nil, err
	}
	p.undo = append(p.undo, p.netns.Close)
	err = p.netns.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "receiver"}, PeerName: "its-end"}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("add a pod's device: %w", err)
		}
		p.receiver = uint32(veth.Index)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if p.request, err = datagram(from, netip.AddrPortFrom(to, editedPort), client); err != nil {
		return nil, err
	}
	if p.answer, err = datagram(to, netip.AddrPortFrom(from, firstPort), server); err != nil {
		return nil, err
	}
	return p, limited.Do(func() error { return p.load(m) })
}

// macOf returns the address of a pod's device.
func macOf(local int) [6]byte { return [6]byte{2, 0, 0, 0, 0, byte(1 + local)} }

func datagram(from netip.Addr, to netip.AddrPort, sender int) ([]byte, error) {
	mac := macOf(sender)
	return frames.Shape{Kind: frames.UDP, Source: from, To: to, Local: mac[:], Remote: make(stdnet.HardwareAddr, 6)}.Packet()
}

// Close frees the program and the devices.
func (p *pair) Close() error {
	var err error
	for i := len(p.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, p.undo[i]())
	}
	p.undo = nil
	return err
}

func (p *pair) load(m *maps.Maps) error {
	spec, err := bpf.LoadPod()
	if err != nil {
		return fmt.Errorf("read programs: %w", err)
	}
	const aboutASecond = 30 // as a shift of nanoseconds
	if err := spec.Variables["cfg"].Set(bpf.MapsPacketConfig{SnatFirst: 1024, SnatLast: 29999, TickShift: aboutASecond, Bypass: 1, Policies: 1}); err != nil {
		return fmt.Errorf("configure programs: %w", err)
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: m.Replacements(spec)})
	if err != nil {
		return fmt.Errorf("load programs: %w", err)
	}
	p.undo = append(p.undo, func() error { loaded.Close(); return nil })
	p.program = loaded.Programs["tc_from_pod"]
	// Without that the programs take routes for unknown.
	return m.RouteEpoch.Put(uint32(0), maps.RouteEpoch{Until: 1 << 30})
}

// next returns the number of a flow that was not asked about for long.
func (p *pair) next() int {
	p.flow++
	return p.flow % allPorts
}

// accepts reports whether a request of a flow reaches the second pod. It has to run in the pair's namespace.
func (p *pair) accepts(flow int) (bool, error) {
	binary.BigEndian.PutUint16(p.request[portsAt:], uint16(firstPort+flow))
	verdict, err := p.run(sender, p.request)
	if err == nil && verdict != redirected && verdict != dropped {
		err = fmt.Errorf("a request got the verdict %d", int32(verdict))
	}
	return verdict == redirected, err
}

// establish has a flow begin and be answered.
func (p *pair) establish(flow int) error {
	if accepted, err := p.accepts(flow); err != nil || !accepted {
		return errors.Join(fmt.Errorf("a first request was accepted: %v", accepted), err)
	}
	binary.BigEndian.PutUint16(p.answer[portsAt:], editedPort)
	binary.BigEndian.PutUint16(p.answer[portsAt+2:], uint16(firstPort+flow))
	if verdict, err := p.run(p.receiver, p.answer); err != nil || verdict != redirected {
		return errors.Join(fmt.Errorf("an answer got the verdict %d", int32(verdict)), err)
	}
	return nil
}

// run runs the program on a packet that a pod sends through a device.
func (p *pair) run(device uint32, packet []byte) (uint32, error) {
	const ifindex = 10 // its place in the context, in words
	return p.program.Run(&ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256), Context: []uint32{ifindex: device}})
}
