package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// routerTwoPods is a node with two pods and a link to the outside, through which everything else is
// reached.
type routerTwoPods struct {
	*routerNode
	pods    [2]*wire
	addrs   [2]string // of the pods, in brackets where needed
	outside *wire
	remote  string
}

func newRouterTwoPods(t *testing.T, f family, bypass bool) *routerTwoPods {
	t.Helper()
	config := standardConfig()
	if bypass {
		config.Bypass = 1
	}
	return newRouterTwoPodsOf(t, f, config)
}

func newRouterTwoPodsOf(t *testing.T, f family, config bpf.MapsPacketConfig) *routerTwoPods {
	t.Helper()
	rig.Root(t)
	h := &routerTwoPods{routerNode: newRouterNode(t, f, config, hooks()[0], podHook()), addrs: [2]string{f.pod, brackets(other4)}, remote: f.vip}
	if f.any == "[::]" {
		h.addrs[1] = brackets(other6)
	}
	h.outside = h.wire(t, "outside")
	var list []maps.Pod
	for i, name := range []string{"pod0", "pod1"} {
		w := h.link(t, name)
		h.attachTC(t, w, map[uint32]*ebpf.Program{
			netlink.HANDLE_MIN_INGRESS: h.programs["tc_from_pod"], netlink.HANDLE_MIN_EGRESS: h.programs["tc_to_pod"],
		})
		w.reach(t, h.addrs[i], true)
		h.pods[i] = w
		list = append(list, maps.Pod{
			Addrs: []netip.Addr{netip.MustParseAddr(host(h.addrs[i]))}, Index: uint32(w.near.Attrs().Index),
			MAC: [6]byte(w.end.Attrs().HardwareAddr), HostMAC: [6]byte(w.near.Attrs().HardwareAddr),
		})
	}
	if _, err := h.maps.SetPods(list); err != nil {
		t.Fatal(err)
	}
	if err := h.maps.SetNatDevices(map[uint32]bool{uint32(h.outside.near.Attrs().Index): true}); err != nil {
		t.Fatal(err)
	}
	return h
}

// closed keeps the stack from forwarding anything: what arrives has bypassed it.
func (h *routerTwoPods) closed(t *testing.T) {
	t.Helper()
	for _, w := range append(h.pods[:], h.outside) {
		h.blockStack(t, w)
	}
}

// blockStack drops whatever the programs of a link leave to the stack.
func (h *routerTwoPods) blockStack(t *testing.T, w *wire) {
	t.Helper()
	attrs := netlink.FilterAttrs{LinkIndex: w.near.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 2, Protocol: 3}
	err := h.node.FilterAdd(&netlink.BpfFilter{FilterAttrs: attrs, Fd: constant(t, ebpf.SchedCLS, 2).FD(), Name: "closed", DirectAction: true})
	if err != nil {
		t.Fatal(err)
	}
}

// Packets between pods of a node, and between them and the outside, bypass the node's stack, with
// one hop less.
func TestPastTheStack(t *testing.T) {
	for name, f := range families() {
		t.Run(name, func(t *testing.T) {
			h := newRouterTwoPods(t, f, true)
			h.outside.reach(t, h.remote, true)
			h.closed(t)
			for i, proto := range []byte{tcp, udp, tcp, udp} {
				if i == 2 { // a pod's flow to a service makes no difference
					h.dials(t)
				}
				for _, size := range []int{5, 1400} {
					for _, c := range []struct {
						from, to *wire
						packet
					}{
						{h.pods[0], h.pods[1], packet{from: h.addrs[0] + ":1000", to: h.addrs[1] + ":80"}},
						{h.pods[1], h.pods[0], packet{from: h.addrs[1] + ":80", to: h.addrs[0] + ":1000"}},
						{h.pods[0], h.outside, packet{from: h.addrs[0] + ":1000", to: h.remote + ":80"}},
						{h.outside, h.pods[0], packet{from: h.remote + ":80", to: h.addrs[0] + ":1000"}},
					} {
						c.proto, c.flags, c.payload = proto, ack, size
						c.from.send(t, c.packet)
						c.to.want(t, withTTL(c.packet, 63))
					}
				}
			}
		})
	}
}

// The stack gets what the programs cannot answer: a packet with no hops left, one too large for the
// next link, one for a link that is not served, and all packets where configured so.
func TestToTheStack(t *testing.T) {
	for name, f := range families() {
		t.Run(name, func(t *testing.T) {
			for _, bypass := range []bool{true, false} {
				h := newRouterTwoPods(t, f, bypass)
				h.outside.reach(t, h.remote, true)
				between := packet{from: h.addrs[0] + ":1000", to: h.addrs[1] + ":80", proto: udp}
				out := packet{from: h.addrs[0] + ":1000", to: h.remote + ":80", proto: udp}
				h.pods[0].send(t, withTTL(between, 1))
				h.pods[0].answered(t, "no hops left", between.to)
				h.pods[0].send(t, withTTL(out, 1))
				h.pods[0].answered(t, "no hops left, to the outside", out.to)
				if err := h.node.LinkSetMTU(h.outside.near, 1280); err != nil {
					t.Fatal(err)
				}
				big := out
				big.payload, big.whole = 1300, true
				h.pods[0].send(t, big)
				h.pods[0].answered(t, "too big", out.to)
				if err := h.maps.SetNatDevices(nil); err != nil {
					t.Fatal(err)
				}
				h.pods[0].send(t, out)
				h.outside.want(t, withTTL(out, 63))
				h.pods[0].send(t, between)
				h.pods[1].want(t, withTTL(between, 63))
			}
		})
	}
}

// answered fails unless an ICMP error about a packet to that address comes out.
func (w *wire) answered(t *testing.T, what, to string) {
	t.Helper()
	target := netip.MustParseAddrPort(to).Addr().AsSlice()
	if err := w.socket.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for frame := make([]byte, 65536); ; {
		n, err := w.socket.Read(frame)
		if err != nil {
			t.Fatalf("%s: nobody answered: %v", what, err)
		}
		icmp := n > 14+40 && (binary.BigEndian.Uint16(frame[12:]) == 0x0800 && frame[14+9] == 1 || binary.BigEndian.Uint16(frame[12:]) == 0x86dd && frame[14+6] == 58)
		if icmp && bytes.HasPrefix(frame, w.end.Attrs().HardwareAddr) && bytes.Contains(frame[14+28:n], target) {
			return
		}
	}
}

// The neighbor beyond a link need not be resolved: the kernel asks for it.
func TestPastTheStackUnknownNeighbor(t *testing.T) {
	for name, f := range families() {
		t.Run(name, func(t *testing.T) {
			h := newRouterTwoPods(t, f, true)
			rig.Address(t, h.outside.far, "far", host(h.remote)+map[bool]string{true: "/32", false: "/128"}[!strings.Contains(h.remote, "[")])
			h.outside.reach(t, h.remote, false)
			rig.Address(t, h.netns, "outside", host(f.snat)+map[bool]string{true: "/32", false: "/128"}[!strings.Contains(h.remote, "[")])
			p := packet{from: h.addrs[0] + ":1000", to: h.remote + ":80", proto: udp}
			h.pods[0].send(t, p)
			h.outside.want(t, withTTL(p, 63))
		})
	}
}

// What a pod sends with another's address reaches nobody, whoever it is for; nor does a packet with
// a VLAN tag that the device takes off, or one that ends within its header.
func TestSpoofedOnTheWire(t *testing.T) {
	for name, f := range families() {
		t.Run(name, func(t *testing.T) {
			h := newRouterTwoPods(t, f, true)
			h.outside.reach(t, h.remote, true)
			forged := packet{from: h.addrs[1] + ":1000", to: h.remote + ":80", proto: udp}
			h.pods[0].send(t, forged)
			plain := packet{from: h.addrs[0] + ":1000", to: h.remote + ":80", proto: udp}
			labeled := plain
			labeled.tags = 1
			h.pods[0].send(t, labeled)
			short := plain
			short.macs = h.pods[0].macs(true)
			if _, err := h.pods[0].socket.Write(short.bytes()[:14+18]); err != nil {
				t.Fatal(err)
			}
			h.pods[0].send(t, plain)
			h.outside.want(t, withTTL(plain, 63)) // and nothing before it
			have := podReasons(t, h)
			for _, reason := range []string{"spoofed", "protocol", "malformed"} {
				if have[reason] != 1 {
					t.Errorf("%s: counted %d times, want once: %v", reason, have[reason], have)
				}
			}
		})
	}
}

func podReasons(t *testing.T, h *routerTwoPods) map[string]uint64 {
	t.Helper()
	w := *h.routerNode.bareNode
	w.hook = podHook()
	return w.reasons(t)
}

// A service's packets bypass the stack too: to a backend in a pod of this node, and its answers
// back to the client.
func TestServicePastTheStack(t *testing.T) {
	for name, f := range families() {
		t.Run(name, func(t *testing.T) {
			h := newRouterTwoPods(t, f, true)
			h.outside.reach(t, f.client, true)
			h.closed(t)
			for i, proto := range []byte{tcp, udp} {
				h.service(t, addrPort(f.any, 30080+i), proto, maps.NodePort, h.addrs[0]+":8080", true)
				to := addrPort(f.node, 30080+i)
				for n, flags := range []byte{syn, ack, ack} {
					there := packet{from: f.client + ":4000", to: to, proto: proto, flags: flags, seq: 1, ack: uint32(n) * 1001}
					h.outside.send(t, there)
					there.to = h.addrs[0] + ":8080"
					h.pods[0].want(t, withTTL(there, 63))
					back := packet{from: h.addrs[0] + ":8080", to: f.client + ":4000", proto: proto, flags: ack, seq: 1000, ack: 2}
					if flags == syn {
						back.flags = syn | ack
					}
					h.pods[0].send(t, back)
					back.from = to
					h.outside.want(t, withTTL(back, 63))
				}
			}
		})
	}
}
