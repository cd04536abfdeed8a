package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	stdmaps "maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/test/rig"
)

// routerNode is a bareNode with devices: its programs get frames from real links, and send them on.
type routerNode struct {
	*bareNode
	f     family
	node  *netlink.Handle
	wires map[string]*wire
}

// wire is a link of the node, and what is at its far end: tests put frames in there, and read those
// that come out.
type wire struct {
	router    *routerNode
	far       *rig.Netns
	handle    *netlink.Handle
	near, end netlink.Link
	socket    *os.File
}

// newRouterNode returns a node that is a router, with the tc programs on the links that follow; with
// those of XDP too, or only those, depending on the hooks.
func newRouterNode(t *testing.T, f family, config bpf.MapsPacketConfig, on ...hook) *routerNode {
	t.Helper()
	s := &routerNode{bareNode: newBareNodeOf(t, on[0], config), f: f, wires: map[string]*wire{}}
	for _, more := range on[1:] {
		stdmaps.Copy(s.programs, s.loaded.programs(t, more))
	}
	s.node = handleOf(t, s.netns)
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/lo/accept_local"} {
		if err := s.netns.SetSysctl(name, "1"); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func handleOf(t *testing.T, n *rig.Netns) *netlink.Handle {
	t.Helper()
	handle, err := netlink.NewHandleAt(netns.NsHandle(n.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(handle.Close)
	return handle
}

// wire adds a link to the node, with the programs for devices on it.
func (s *routerNode) wire(t *testing.T, name string) *wire {
	t.Helper()
	w := s.link(t, name)
	s.attach(t, w)
	s.wires[name] = w
	macs := map[uint32][6]byte{}
	for _, w := range s.wires {
		macs[uint32(w.near.Attrs().Index)] = [6]byte(w.near.Attrs().HardwareAddr)
	}
	if err := s.maps.SetDeviceMacs(macs); err != nil {
		t.Fatal(err)
	}
	return w
}

// link adds one without programs.
func (s *routerNode) link(t *testing.T, name string) *wire {
	t.Helper()
	far := rig.NewNetns(t, name)
	rig.Veth(t, s.netns, name, far, "far")
	w := &wire{router: s, far: far, handle: handleOf(t, far)}
	var err, farErr error
	w.near, err = s.node.LinkByName(name)
	w.end, farErr = w.handle.LinkByName("far")
	if err := errors.Join(err, farErr); err != nil {
		t.Fatal(err)
	}
	w.socket = w.listen(t)
	return w
}

func (s *routerNode) attach(t *testing.T, w *wire) {
	t.Helper()
	if program := s.programs["xdp_from_netdev"]; program != nil {
		s.loaded.attached = true
		attachXDP(t, s.netns, program, w.near)
		// Without a program there, a veth receives no frame that XDP sent back.
		attachXDP(t, w.far, constant(t, ebpf.XDP, 2), w.end)
	}
	if s.programs["tc_from_netdev"] == nil {
		return
	}
	s.attachTC(t, w, map[uint32]*ebpf.Program{
		netlink.HANDLE_MIN_INGRESS: s.programs["tc_from_netdev"], netlink.HANDLE_MIN_EGRESS: s.programs["tc_to_netdev"],
	})
}

// attachTC attaches programs in a way that every kernel supports.
func (s *routerNode) attachTC(t *testing.T, w *wire, programs map[uint32]*ebpf.Program) {
	t.Helper()
	at := netlink.QdiscAttrs{LinkIndex: w.near.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}
	err := s.node.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: at, QdiscType: "clsact"})
	for parent, program := range programs {
		attrs := netlink.FilterAttrs{LinkIndex: at.LinkIndex, Parent: parent, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL}
		err = errors.Join(err, s.node.FilterAdd(&netlink.BpfFilter{FilterAttrs: attrs, Fd: program.FD(), Name: "test", DirectAction: true}))
	}
	if err != nil {
		t.Fatal(err)
	}
	s.loaded.attached = true
	t.Cleanup(func() { // a namespace goes some time after its test, and the programs with it
		err := s.node.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: at, QdiscType: "clsact"})
		if err != nil && !errors.Is(err, unix.ENODEV) {
			t.Errorf("detach from link %d: %v", at.LinkIndex, err)
		}
	})
}

// block keeps every packet of a wire from the stack.
func (s *routerNode) block(t *testing.T, w *wire) {
	t.Helper()
	s.attachTC(t, w, map[uint32]*ebpf.Program{netlink.HANDLE_MIN_INGRESS: constant(t, ebpf.SchedCLS, 2)})
}

func attachXDP(t *testing.T, at *rig.Netns, program *ebpf.Program, to netlink.Link) {
	t.Helper()
	err := at.Do(func() error {
		attached, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: to.Attrs().Index, Flags: link.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// constant returns a program with a constant verdict: 2 is XDP_PASS, or TC_ACT_SHOT.
func constant(t *testing.T, of ebpf.ProgramType, verdict int32) *ebpf.Program {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: of, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}, License: "GPL",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program
}

// listen opens a socket for frames at the far end.
func (w *wire) listen(t *testing.T) *os.File {
	t.Helper()
	var socket *os.File
	err := w.far.Do(func() error {
		all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(all))
		if err != nil {
			return err
		}
		socket = os.NewFile(uintptr(fd), "frames")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: w.end.Attrs().Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return socket
}

// macs returns the link addresses of a frame that goes in at the far end, or comes out there.
func (w *wire) macs(in bool) string {
	near, end := string(w.near.Attrs().HardwareAddr), string(w.end.Attrs().HardwareAddr)
	if in {
		return near + end
	}
	return end + near
}

func (w *wire) send(t *testing.T, p packet) {
	t.Helper()
	p.macs = w.macs(true)
	if _, err := w.socket.Write(p.bytes()); err != nil {
		t.Fatal(err)
	}
}

// next returns the next TCP or UDP frame that came out, ignoring other traffic on the link, or nil
// if none comes in time.
func (w *wire) next(t *testing.T, within time.Duration) []byte {
	t.Helper()
	if err := w.socket.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	for frame := make([]byte, 65536); ; {
		n, err := w.socket.Read(frame)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.HasPrefix(frame, w.near.Attrs().HardwareAddr) || !hasPorts(frame[:n]) {
			continue // our own frames, and what the kernels say to each other
		}
		return bytes.Clone(frame[:n])
	}
}

func hasPorts(frame []byte) bool {
	proto := frame[14+9]
	if frame[12] == 0x86 {
		proto = frame[14+6]
		for at := 14 + 40; proto == 44 || proto == 60; at += 8 * (int(frame[at+1]) + 1) {
			proto = frame[at]
		}
	} else if frame[12] != 8 || frame[13] != 0 {
		return false
	}
	return proto == tcp || proto == udp || proto == sctp
}

// want fails unless the packet comes out. A source port of zero stands for any; want returns the
// actual one.
func (w *wire) want(t *testing.T, p packet) string {
	t.Helper()
	frame := w.next(t, 5*time.Second)
	if frame == nil {
		t.Fatalf("%s to %s did not arrive; counted: %v", p.from, p.to, w.router.reasons(t))
	}
	port := portOf(frame, w.router.f)
	if strings.HasSuffix(p.from, ":0") {
		p.from = strings.TrimSuffix(p.from, "0") + port
	}
	p.macs = w.macs(false)
	if !bytes.Equal(frame, p.bytes()) {
		t.Fatalf("have  %x\nwant  %x (%s to %s)", frame, p.bytes(), p.from, p.to)
	}
	return p.from
}

// reach tells the node that an address is at the far end of the wire, and resolves its neighbor if
// known.
func (w *wire) reach(t *testing.T, addr string, known bool) {
	t.Helper()
	ip := netip.MustParseAddr(strings.Trim(addr, "[]"))
	bits := ip.BitLen()
	at := w.near.Attrs().Index
	err := w.router.node.RouteReplace(&netlink.Route{
		LinkIndex: at, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(bits, bits)},
	})
	if known {
		err = errors.Join(err, w.router.node.NeighSet(&netlink.Neigh{
			LinkIndex: at, IP: ip.AsSlice(), HardwareAddr: w.end.Attrs().HardwareAddr, State: netlink.NUD_PERMANENT,
		}))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func withTTL(p packet, ttl byte) packet {
	p.ttl = ttl
	return p
}
