package twin

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"fairlead.io/fairlead/pkg/maps"
)

// end is who gets a frame that has passed the node: a pod, a host behind a device, or nobody.
type end struct {
	pod, device int
	node        bool       // the node itself
	there       bool       // at the other node
	crossed     bool       // both nodes were passed
	sender      netip.Addr // of what comes out of the tunnel; if none, the node behind which the source belongs
	frame       []byte
	tunneled    []byte // what the tunnel of the node has taken the headers off
}

func (e end) String() string {
	node := map[bool]string{true: "the other node", false: "this node"}[e.there]
	switch {
	case e.pod > 0:
		return fmt.Sprintf("pod %d of %s", e.pod, node)
	case e.node:
		return node
	}
	return fmt.Sprintf("device %d of %s", e.device, node)
}

// journey has a frame pass the node: from a pod's device or another one, through the programs and the
// stack between, to the device by which it leaves, or to a pod.
func (w *kernelNode) journey(frame []byte, from end, mark uint32) (end, error) {
	var r result
	var err error
	switch {
	case from.node:
		device, _ := w.role.deviceTo(read(frame).flow.Dest.Addr())
		return w.left(frame, device, end{})
	case from.pod > 0:
		r, err = w.runTCMarked("tc_from_pod"+pastStack, frame, w.pods[from.pod], mark)
	case from.device == tunnelDevice && from.sender.IsValid():
		r, err = w.emerge(frame, from.sender)
	case from.device == tunnelDevice:
		r, err = w.emerge(frame, nodeBehind(read(frame).flow.Source.Addr()))
	default:
		r, err = w.receive(frame, from.device)
	}
	return w.passed(frame, r, from, err)
}

// nodeBehind returns the node that sends what comes from an address through the tunnel.
func nodeBehind(source netip.Addr) netip.Addr {
	p := pools()[source.Is4()]
	return p.peers[max(0, belongs(source)-thisNode-1)]
}

// passed returns where a frame goes behind the program that handled it first.
func (w *kernelNode) passed(frame []byte, r result, from end, err error) (end, error) {
	if err != nil || r.verdict == Drop {
		return end{}, err
	}
	if r.verdict == Out {
		return w.redirected(frame, r, from)
	}
	if from.pod == 0 && len(frame) >= 6 && frame[0]&1 == 0 && MAC(frame[:6]) != w.devices[from.device].mac {
		return end{}, nil // the stack takes nothing that was sent to another host
	}
	return w.routed(r.data, from)
}

// redirected returns where a frame goes that a program sent on by itself.
func (w *kernelNode) redirected(frame []byte, r result, from end) (end, error) {
	for id, d := range w.pods {
		if len(r.data) >= 6 && MAC(r.data[:6]) == d.peer {
			return w.enter(r.data, id)
		}
	}
	if dest := read(r.data).flow.Dest.Addr(); len(r.data) >= 6 && MAC(r.data[:6]) == (MAC{}) { // to the loopback device, to be cut up if necessary
		device, _ := w.role.deviceTo(dest)
		return end{device: device, frame: r.data}, nil
	}
	to := end{device: from.device, frame: r.data}
	for id, d := range w.devices {
		if MAC(r.data[:6]) == d.peer {
			to.device = id
		}
	}
	if device, ok := w.role.deviceTo(read(r.data).flow.Dest.Addr()); ok && to.device == 0 {
		to.device = device // a neighbor that the kernel resolves
	}
	if before, after := read(frame), read(r.data); from.pod > 0 && before.flow == after.flow && to.device > 0 {
		return w.left(r.data, to.device, from) // nothing has been translated yet
	}
	return to, nil
}

// routed returns where the stack sends a frame.
func (w *kernelNode) routed(frame []byte, from end) (end, error) {
	to := read(frame).flow.Dest.Addr()
	if id, ok := w.role.pods[to]; ok {
		return w.enter(frame, id)
	}
	device, ok := w.role.deviceTo(to)
	if inner, is := innerOfTunnel(frame); is && w.isHeard(to) {
		return w.untunnel(frame, inner)
	}
	if !ok || w.role.owns(to) {
		return end{node: true, frame: frame}, nil // or nobody
	}
	return w.left(frame, device, from)
}

// isHeard reports whether this node's tunnel gets what is sent to an address.
func (w *kernelNode) isHeard(addr netip.Addr) bool {
	p := pools()[addr.Is4()]
	return w.role.owns(addr) || addr.IsMulticast() || addr.IsLinkLocalUnicast() || addr.IsUnspecified() ||
		addr == p.broadcast()
}

// untunnel has the tunnel take its headers off a frame, and returns where what is inside goes.
func (w *kernelNode) untunnel(frame, inner []byte) (to end, err error) {
	from := end{device: tunnelDevice}
	r, err := w.emerge(inner, read(frame).flow.Source.Addr())
	if err == nil {
		to, err = w.passed(inner, r, from, nil)
	}
	to.tunneled = frame
	return to, err
}

// left returns what leaves by a device.
func (w *kernelNode) left(frame []byte, device int, from end) (end, error) {
	if tooShort(frame) {
		return end{device: device, frame: frame}, nil
	}
	by := w.devices[from.device].index
	if from.pod > 0 {
		by = w.pods[from.pod].index
	}
	code, data, err := w.run("tc_to_netdev", frame, []uint32{9: uint32(by), 10: uint32(w.devices[device].index)})
	if err != nil || code == tcDrop {
		return end{}, err
	}
	return end{device: device, frame: data}, nil
}

// enter returns what a pod gets.
func (w *kernelNode) enter(frame []byte, pod int) (end, error) {
	r, err := w.runTC("tc_to_pod"+pastStack, frame, w.pods[pod])
	if err != nil || r.verdict == Drop {
		return end{}, err
	}
	return end{pod: pod, frame: r.data}, nil
}

func (w *kernelNode) runTCMarked(name string, frame []byte, d device, mark uint32) (result, error) {
	if tooShort(frame) {
		return result{verdict: Stack, data: frame}, nil
	}
	code, data, err := w.run(name, frame, []uint32{2: mark, 8: mark, 10: uint32(d.index)})
	return result{verdict: tcVerdict(code), data: data}, err
}

// address writes the link's addresses into a frame that enters the node.
func (w *kernelNode) address(d *draft, from end) {
	at := w.devices[from.device]
	if from.pod > 0 {
		at = w.pods[from.pod]
	}
	d.dest, d.source = at.mac, at.peer
}

// isMask reports whether a node has a client use an address of its own.
func isMask(addr netip.Addr) bool {
	p := pools()[addr.Is4()]
	return addr == p.snat || addr == p.peers[0]
}

// idle is what the agent does while nobody sends anything for a minute: it forgets flows that one
// end has reset, or both have closed.
func (w *kernelNode) idle() error {
	var gone []maps.Flow
	err := maps.EachFlow(w.maps.Ct, &w.buffer, func(keys []maps.Flow, rows []maps.FlowRow) error {
		for i := range keys {
			if rows[i].State == maps.FlowReset {
				gone = append(gone, keys[i], maps.BackOf(keys[i], &rows[i]))
			}
		}
		return nil
	})
	for i := range gone {
		_ = w.maps.Ct.Delete(&gone[i]) // both directions may be in the list
	}
	return err
}

// opensTCP reports whether a frame is the first of a TCP connection to whom reads every header.
func opensTCP(frame []byte) bool {
	p := read(frame)
	at, next := p.l3+40, byte(0)
	switch {
	case p.l3 == 0:
		return false
	case p.v4:
		at, next = p.l3+int(frame[p.l3]&15)*4, frame[p.l3+9]
		if binary.BigEndian.Uint16(frame[p.l3+6:])&0x1fff != 0 {
			return false
		}
	default:
		for next = frame[p.l3+6]; (next == 0 || next == 43 || next == 60) && at+8 <= len(frame); {
			next, at = frame[at], at+8*(int(frame[at+1])+1)
		}
	}
	return next == protoTCP && len(frame) >= at+20 && frame[at+13]&(SYN|ACK) == SYN
}

// innerOfTunnel returns the frame inside a packet to the tunnel's port.
func innerOfTunnel(frame []byte) ([]byte, bool) {
	p := read(frame)
	if p.content != ported || p.flow.Proto != protoUDP || p.flow.Dest.Port() != tunnelPort || len(frame) < p.l4+8+8+14 {
		return nil, false
	}
	return frame[p.l4+16:], binary.BigEndian.Uint32(frame[p.l4+8:]) == 8<<24
}
