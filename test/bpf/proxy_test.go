package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// proxyPort is the port on which a proxy listens.
const proxyPort = 15001

// newRouterWithProxy returns a node whose first pod may have a proxy.
func newRouterWithProxy(t *testing.T, f family, bypass bool) *routerTwoPods {
	t.Helper()
	h := newRouterTwoPods(t, f, bypass)
	h.outside.reach(t, h.remote, true)
	lo, err := h.node.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	h.attachTC(t, &wire{router: h.routerNode, near: lo}, map[uint32]*ebpf.Program{
		netlink.HANDLE_MIN_INGRESS: h.programs["tc_from_lo"], netlink.HANDLE_MIN_EGRESS: h.programs["tc_to_lo"],
	})
	node := netip.MustParseAddr(host(f.node))
	rig.Address(t, h.netns, "lo", netip.PrefixFrom(node, node.BitLen()).String())
	if _, err := h.maps.SetNodeAddrs(map[netip.Addr]maps.NodeAddr{node: {Ifindex: 1}}); err != nil {
		t.Fatal(err)
	}
	return h
}

// proxied tells the programs which proxy the first pod has.
func (h *routerTwoPods) proxied(t *testing.T, proxy maps.Proxy, unchecked bool) {
	t.Helper()
	w := h.pods[0]
	err := h.maps.AddPod(maps.Pod{
		Addrs: []netip.Addr{netip.MustParseAddr(host(h.addrs[0]))}, Index: uint32(w.near.Attrs().Index), MAC: [6]byte(w.end.Attrs().HardwareAddr),
		HostMAC: [6]byte(w.near.Attrs().HardwareAddr), Proxy: proxy, Unchecked: unchecked,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// listens has a process of the node listen, transparently if it is a proxy, until the test ends or
// it is closed.
func (h *routerTwoPods) listens(t *testing.T, at netip.AddrPort, isProxy bool) (listener net.Listener) {
	t.Helper()
	err := h.do(func() (err error) {
		if isProxy {
			listener, err = rig.ListenTransparent(at)
		} else {
			listener, err = net.Listen("tcp", at.String())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

func (h *routerTwoPods) loopback() netip.Addr {
	if netip.MustParseAddr(host(h.remote)).Is4() {
		return netip.MustParseAddr("127.0.0.1")
	}
	return netip.IPv6Loopback()
}

// segment returns the source and destination of a frame without extension headers, and its TCP
// part.
func segment(frame []byte) (from, to string, tcp []byte) {
	addrs, size, at := frame[14+12:], 4, 14+20
	if frame[12] == 0x86 {
		addrs, size, at = frame[14+8:], 16, 14+40
	}
	end := func(addr, port []byte) string {
		ip, _ := netip.AddrFromSlice(addr)
		return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(port)).String()
	}
	tcp = frame[at:]
	return end(addrs[:size], tcp), end(addrs[size:2*size], tcp[2:]), tcp
}

// answers fails unless the next frame that comes out of the first pod's wire answers a packet with
// these flags. It returns its sequence number.
func (h *routerTwoPods) answers(t *testing.T, what string, p packet, flags byte) uint32 {
	t.Helper()
	frame := h.pods[0].next(t, 5*time.Second)
	if frame == nil {
		t.Fatalf("%s: nobody answers; counted: %v, %v", what, h.countedAt(t, "pod", "no-proxy"), h.countedAt(t, "pod", "fragment"))
	}
	from, to, segment := segment(frame)
	if from != p.to || to != p.from || segment[13] != flags {
		t.Fatalf("%s: %s answers %s with flags %#x, want %s, %s and %#x", what, from, to, segment[13], p.to, p.from, flags)
	}
	return binary.BigEndian.Uint32(segment[4:])
}

// A connection that a pod opens goes to its proxy, which sees the address that the pod dialed as
// its own and answers from it, past the stack or not. Another listener on that port of the node, on
// any address, gets nothing of it.
func TestHandOver(t *testing.T) {
	for name, f := range families() {
		for _, bypass := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				h := newRouterWithProxy(t, f, bypass)
				h.proxied(t, maps.Proxy{Asked: true, Port: proxyPort}, false)
				other := h.listens(t, netip.AddrPortFrom(netip.MustParseAddr(host(f.any)), 80), false)
				proxy := h.listens(t, netip.AddrPortFrom(h.loopback(), proxyPort), true)
				p := packet{from: h.addrs[0] + ":4000", to: h.remote + ":80", proto: tcp, flags: syn, seq: 99}
				h.pods[0].send(t, p)
				p.seq, p.ack = 100, h.answers(t, "the first", p, syn|ack)+1
				p.flags = syn
				h.pods[0].send(t, withSeq(p, 99)) // once more
				h.answers(t, "the first again", p, syn|ack)
				p.flags, p.payload = ack, 5
				h.pods[0].send(t, p)
				h.answers(t, "data", p, ack)
				conn, err := proxy.Accept()
				if err != nil {
					t.Fatal(err)
				}
				if conn.LocalAddr().String() != p.to || conn.RemoteAddr().String() != p.from {
					t.Errorf("the proxy sees %s to %s, want %s to %s", conn.RemoteAddr(), conn.LocalAddr(), p.from, p.to)
				}
				if n, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
					t.Errorf("the proxy reads %d bytes: %v", n, err)
				}
				if err := proxy.Close(); err != nil { // existing connections go on
					t.Fatal(err)
				}
				p.seq += 5
				h.pods[0].send(t, p)
				h.answers(t, "more data", p, ack)
				if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
					t.Fatal(err)
				}
				if err := conn.Close(); err != nil {
					t.Fatal(err)
				}
				h.answers(t, "it ends", p, 4|ack)
				p.seq += 5
				h.pods[0].send(t, p) // and a packet of a closed connection reaches the host it is for
				h.outside.want(t, withTTL(p, 63))
				if err := other.(*net.TCPListener).SetDeadline(time.Now()); err != nil {
					t.Fatal(err)
				}
				if conn, err := other.Accept(); err == nil {
					t.Errorf("another listener gets %s", conn.RemoteAddr())
				}
			})
		}
	}
}

// linkLocal returns addresses that packets are forwarded to although they are meant for the link, or
// for a cloud's machines.
func (f family) linkLocal() []string {
	if f.any == "[::]" {
		return []string{"[fd00:ec2::254]", "[fd00:ec2::23]", "[fd20:ce::254]"} // the node does not forward to fe80::/10
	}
	return []string{"169.254.169.254", "169.254.0.1", "169.254.255.254"}
}

// headers returns this many headers of IPv6 options, each of that many bytes.
func headers(count, size int) []byte {
	chain := make([]byte, count*size)
	for at := 0; at < len(chain); at += size {
		chain[at+1] = byte(size/8 - 1)
	}
	return chain
}

func withSeq(p packet, seq uint32) packet {
	p.seq, p.ack = seq, 0
	return p
}

// What a pod with a proxy sends goes to the proxy, out, to the node itself or nowhere.
func TestWhatIsHandedOver(t *testing.T) {
	for name, f := range families() {
		t.Run(name, func(t *testing.T) {
			h := newRouterWithProxy(t, f, true)
			listener := h.listens(t, netip.AddrPortFrom(h.loopback(), proxyPort), true)
			h.listens(t, netip.AddrPortFrom(netip.MustParseAddr(host(f.any)), 80), false)
			strict, unknown := maps.Proxy{Asked: true, Port: proxyPort}, maps.Proxy{Asked: true}
			lax := maps.Proxy{Asked: true, Port: proxyPort, Optional: true}
			none := maps.Proxy{Asked: true, Port: proxyPort + 1}
			for i, c := range []struct {
				what  string
				proxy maps.Proxy
				packet
				want string
			}{
				{"a connection", strict, packet{flags: syn}, "proxy"},
				{"one that may do without", lax, packet{flags: syn}, "proxy"},
				{"one with more flags", strict, packet{flags: syn | 0xc0}, "proxy"},
				{"one with options of IPv4", strict, packet{flags: syn, options: 2}, "proxy"},
				{"one behind options of IPv6", strict, packet{flags: syn, extension: make([]byte, 8)}, "proxy"},
				{"one from a pod without a proxy", maps.Proxy{}, packet{flags: syn}, "out"},
				{"an answer", strict, packet{flags: syn | ack}, "out"},
				{"of an older one", strict, packet{flags: ack, payload: 100}, "out"},
				{"the end of an older one", strict, packet{flags: fin | ack}, "out"},
				{"a reset", strict, packet{flags: 4}, "out"},
				{"no flags", strict, packet{}, "out"},
				{"a datagram", strict, packet{proto: udp}, "out"},
				{"without a known proxy", unknown, packet{flags: syn}, "no-proxy"},
				{"an answer without a known proxy", unknown, packet{flags: syn | ack}, "out"},
				{"where nobody listens", none, packet{flags: syn}, "no-proxy"},
				{"an answer where nobody listens", none, packet{flags: syn | ack}, "out"},
				{"where nobody need listen", maps.Proxy{Asked: true, Port: proxyPort + 1, Optional: true}, packet{flags: syn}, "out"},
				{"the first part", strict, packet{flags: syn, fragment: 0x2000}, "fragment"},
				{"the first part, of an answer", strict, packet{flags: ack, fragment: 0x2000}, "fragment"},
				{"half of a header", strict, packet{cut: 10}, "fragment"},
				{"half of a port", strict, packet{cut: 3}, "malformed"},
				{"one behind as many headers of IPv6 as are read", strict, packet{flags: syn, extension: headers(6, 8)}, "proxy"},
				{"one behind one more", strict, packet{flags: syn, extension: headers(7, 8)}, "extensions"},
				{"one behind one more, where nobody need listen", lax, packet{flags: syn, extension: headers(7, 8)}, "extensions"},
				{"one behind more than 1 KiB of them", strict, packet{flags: syn, extension: headers(1, 1032)}, "extensions"},
				{"one behind more than 1 KiB, without a proxy", maps.Proxy{}, packet{flags: syn, extension: headers(1, 1032)}, "out"},
				{"one behind one more, without a proxy", maps.Proxy{}, packet{flags: syn, extension: headers(7, 8)}, "out"},
			} {
				t.Run(c.what, func(t *testing.T) {
					p := c.packet
					if p.options > 0 && f.any != "0.0.0.0" || p.extension != nil && f.any == "0.0.0.0" {
						return // of the other family
					}
					p.from, p.to = fmt.Sprintf("%s:%d", h.addrs[0], 4100+i), h.remote+":80"
					if p.proto == 0 {
						p.proto = tcp
					}
					h.proxied(t, c.proxy, false)
					h.handled(t, p, c.want)
				})
			}
			h.proxied(t, strict, false)
			own := packet{from: h.addrs[0] + ":4300", to: f.node + ":80", proto: tcp, flags: syn}
			h.pods[0].send(t, own) // a process that listens on every address answers
			h.answers(t, "the node itself", own, syn|ack)
			if err := listener.(*net.TCPListener).SetDeadline(time.Now()); err != nil {
				t.Fatal(err)
			}
			h.proxied(t, strict, true) // identified by its device, because it may send from any address
			h.handled(t, packet{from: h.addrs[0] + ":4301", to: h.remote + ":80", proto: tcp, flags: syn}, "proxy")
			for i, local := range f.linkLocal() { // the services of a cloud trust whoever dials them from the node
				h.outside.reach(t, local, true)
				h.handled(t, packet{from: h.addrs[0] + fmt.Sprintf(":%d", 4303+i), to: local + ":80", proto: tcp, flags: syn}, "out")
			}
			beside := packet{from: h.addrs[1] + ":4302", to: h.remote + ":80", proto: tcp, flags: syn}
			h.pods[1].send(t, beside)
			h.outside.want(t, withTTL(beside, 63))
		})
	}
}

// handled sends a packet from the first pod and fails unless it is handled as wanted: by the proxy,
// by the host it is for, or dropped for a reason.
func (h *routerTwoPods) handled(t *testing.T, p packet, want string) {
	t.Helper()
	switch want {
	case "proxy":
		h.pods[0].send(t, p)
		h.answers(t, "by the proxy", packet{from: p.from, to: p.to}, map[bool]byte{false: syn | ack, true: syn | ack | 0x40}[p.flags&0xc0 != 0])
	case "out":
		h.pods[0].send(t, p)
		h.outside.want(t, withTTL(p, 63))
	default:
		before := h.countedAt(t, "pod", want)
		h.pods[0].send(t, p)
		for end := time.Now().Add(5 * time.Second); h.countedAt(t, "pod", want) == before; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("it is not counted as %s", want)
			}
		}
	}
}

// skbuff is the kernel's struct __sk_buff, reduced to the fields used here.
type skbuff struct {
	Len, PktType, Mark uint32
	_                  [7]uint32
	Ifindex, TcIndex   uint32
	Cb                 [5]uint32
	_                  [31]uint32
}

// try runs a program on a frame that comes in through a device, or leaves through one.
func (h *routerTwoPods) try(t *testing.T, program string, in skbuff, frame []byte) (verdict uint32, out skbuff, after []byte) {
	t.Helper()
	run := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 256), Context: in, ContextOut: &out}
	if err := h.do(func() (err error) { verdict, err = h.programs[program].Run(&run); return err }); err != nil {
		t.Fatal(err)
	}
	return verdict, out, run.DataOut
}

// On its way to the loopback device the packet is not deliverable to any listener: only tc_to_lo
// turns it back into a TCP packet to the address that the pod dialed.
func TestOnTheWay(t *testing.T) {
	for name, f := range families() {
		t.Run(name, func(t *testing.T) {
			h := newRouterWithProxy(t, f, true)
			h.proxied(t, maps.Proxy{Asked: true, Port: proxyPort}, false)
			h.listens(t, netip.AddrPortFrom(h.loopback(), proxyPort), true)
			p := packet{from: h.addrs[0] + ":4000", to: h.remote + ":80", proto: tcp, flags: syn, macs: h.pods[0].macs(true)}
			verdict, skb, frame := h.try(t, "tc_from_pod", skbuff{Ifindex: uint32(h.pods[0].near.Attrs().Index)}, p.bytes())
			if verdict != 7 || skb.Mark != 0xfa170000|proxyPort {
				t.Fatalf("verdict %d, mark %#x", verdict, skb.Mark)
			}
			if f.any == "[::]" && (frame[14+6] != 59 || netip.AddrFrom16([16]byte(frame[14+24:])) != netip.IPv6Loopback()) {
				t.Errorf("without tc_to_lo the packet would be %x", frame)
			}
			verdict, _, frame = h.try(t, "tc_to_lo", skbuff{Mark: skb.Mark, Cb: skb.Cb}, frame)
			if verdict != 1<<32-1 || !bytes.Equal(frame, p.bytes()) {
				t.Errorf("on its way: verdict %d, %x; want %x", verdict, frame, p.bytes())
			}
		})
	}
}

// What comes over the loopback device for a proxy that has just ended is dropped, and packets for
// no proxy are left alone.
func TestOverLoopback(t *testing.T) {
	for name, f := range families() {
		t.Run(name, func(t *testing.T) {
			h := newRouterWithProxy(t, f, true)
			h.listens(t, netip.AddrPortFrom(netip.MustParseAddr(host(f.any)), 80), false)
			frame := packet{from: h.addrs[0] + ":4000", to: h.remote + ":80", proto: tcp, flags: syn}.bytes()
			for _, c := range []struct {
				program     string
				mark, after uint32
				verdict     uint32
			}{
				{"tc_from_lo", 0xfa170000 | proxyPort, 0, 2}, {"tc_from_lo", 0xfa170000, 0, 1<<32 - 1},
				{"tc_from_lo", 0, 0, 1<<32 - 1}, {"tc_from_lo", 0xfa180000 | proxyPort, 0xfa180000 | proxyPort, 1<<32 - 1},
				{"tc_to_lo", 0, 0, 1<<32 - 1}, {"tc_to_lo", 0xfa18, 0xfa18, 1<<32 - 1},
			} {
				verdict, out, after := h.try(t, c.program, skbuff{Mark: c.mark}, frame)
				if verdict != c.verdict || out.Mark != c.after || !bytes.Equal(after, frame) {
					t.Errorf("%s with mark %#x: verdict %d, mark %#x, %x; want %d, %#x, %x", c.program, c.mark, verdict, out.Mark, after,
						c.verdict, c.after, frame)
				}
			}
			if n := h.countedAt(t, "pod", "no-proxy"); n != 1 {
				t.Errorf("%d are counted", n)
			}
		})
	}
}
