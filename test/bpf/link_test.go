package bpf

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// Since Linux 6.9 tc gets packets without their link header where an XDP program for multi-buffer
// packets runs in the stack (generic mode). The tc programs locate the header: they translate
// packets for services, and other packets still have it for the programs that follow, one of which
// sends everything back.
func TestLinkHeader(t *testing.T) {
	rig.Root(t)
	for version, f := range families() {
		t.Run(version, func(t *testing.T) {
			s := newRouterNode(t, f, quick(), hooks()[0])
			outside, inside := s.wire(t, "outside"), s.wire(t, "inside")
			passInStack(t, outside)
			passInStack(t, inside)
			s.returnRest(t, outside)
			for port, proto := range map[string]byte{"4000": tcp, "4001": udp} {
				p := packet{from: f.client + ":" + port, to: f.node + ":99", proto: proto, flags: ack, macs: outside.macs(true)}
				outside.send(t, p)
				outside.wantBack(t, p.bytes())
			}
			establish(t, s, f, outside, inside)
		})
	}
}

// passInStack attaches to a wire an XDP program that passes everything, and accepts multi-buffer
// packets.
func passInStack(t *testing.T, w *wire) {
	t.Helper()
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pass.Close() })
	err = w.router.netns.Do(func() error {
		attached, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: w.near.Attrs().Index, Flags: link.XDPGenericMode})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// returnRest sends what comes in through a wire and passes its programs out through it again,
// unchanged.
func (s *routerNode) returnRest(t *testing.T, w *wire) {
	t.Helper()
	index := w.near.Attrs().Index
	back, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R1, int32(index)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { back.Close() })
	attrs := netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 2, Protocol: unix.ETH_P_ALL}
	if err := s.node.FilterAdd(&netlink.BpfFilter{FilterAttrs: attrs, Fd: back.FD(), Name: "back", DirectAction: true}); err != nil {
		t.Fatal(err)
	}
}

// wantBack fails unless a frame comes back to the far end of the wire that put it in.
func (w *wire) wantBack(t *testing.T, want []byte) {
	t.Helper()
	if err := w.socket.SetReadDeadline(time.Now().Add(readTimeout)); err != nil {
		t.Fatal(err)
	}
	for frame := make([]byte, 65536); ; {
		n, err := w.socket.Read(frame)
		if err != nil {
			t.Fatalf("%x did not come back: %v", want, err)
		}
		if bytes.Equal(frame[:n], want) {
			return
		}
	}
}

// The sender of a first fragment that is too large for the next link must be told: no router
// fragments IPv6, nor IPv4 packets with the don't-fragment flag.
func TestFirstFragmentTooBig(t *testing.T) {
	eachRouterNode(t, func(t *testing.T, s *routerNode, f family) {
		outside, inside := s.wire(t, "outside"), s.wire(t, "inside")
		inside.setMTU(t, 1300)
		s.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", false)
		outside.reach(t, f.client, true)
		inside.reach(t, f.pod, true)
		p := packet{from: f.client + ":4000", to: f.node + ":30053", proto: udp, fragment: 0x2000, whole: true, payload: 1400}
		want := refusalOf(f, host(f.node), host(f.client), f.kinds().tooBig, tooBigCode(f), 1300, p.bytes()[14:])
		copy(want, outside.macs(false))
		outside.send(t, p)
		outside.wantBack(t, want)
	})
}

func tooBigCode(f family) byte {
	if f.any == "[::]" {
		return 0
	}
	return 4
}

// The sender of a packet with no hops left gets an error from the address that it dialed, quoting
// as much of the packet as allowed, so that traceroute works.
func TestHopsAnswered(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		client, vip := f.client+":4000", f.node+":30053"
		row := rowOf(f.snat+":61000", f.pod+":53", false)
		row.Ifindex, row.Dmac = 1, [6]uint8{2, 0, 0, 0, 0, 1} // sent back where it came from: lo
		row.Seen = w.tick(t, client, vip)
		w.setRouteEpoch(t, row.Seen-1, row.Seen+1000) // no other way in the meantime
		w.plant(t, w.maps.CtPending, flowOf(client, vip, udp), row)
		for _, n := range []int{0, 1, 5, 520, 1183, 1400} {
			d := udpTo(client, vip, n)
			d.ttl = 1
			w.answered(t, fmt.Sprintf("%d bytes", n), "ttl", d.bytes(),
				refusalOf(f, d.to, d.from, f.kinds().expired, 0, 0, d.bytes()[14:]))
		}
		d := udpTo(client, vip, 800)
		d.ttl, d.fragment, d.id = 1, 0x2000, 9
		w.answered(t, "first fragment", "ttl", d.bytes(), refusalOf(f, d.to, d.from, f.kinds().expired, 0, 0, d.bytes()[14:]))
	})
}
