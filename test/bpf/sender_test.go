package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// The addresses of a pod, of its node's end, and of another pod.
const (
	podMAC, hostMAC   = "\x02\x00\x00\x00\x00\x05", "\xee\x00\x00\x00\x00\x05"
	otherMAC          = "\x02\x00\x00\x00\x00\x06"
	pod4, other4      = "10.244.1.5", "10.244.1.6"
	pod6, other6      = "fd02::5", "fd02::6"
	link6, gateway6   = "fe80::5", "fe80::1"
	outside4          = "198.51.100.7"
	outside6          = "2001:db8:1::7"
	routers, everyone = "ff02::2", "ff02::1"
)

func podHook() hook {
	return hook{"pod", bpf.LoadPod, "tc_from_pod", "", 1<<32 - 1, 2, 7}
}

// newBareNodeTwoPods returns a node with two pods: test runs come in through the device of the first.
func newBareNodeTwoPods(t *testing.T, config bpf.MapsPacketConfig, unchecked bool) *bareNode {
	t.Helper()
	rig.Root(t)
	w := newBareNodeOf(t, podHook(), config)
	pods := []maps.Pod{
		{
			Addrs: []netip.Addr{netip.MustParseAddr(pod4), netip.MustParseAddr(pod6)}, Index: 1,
			MAC: [6]byte([]byte(podMAC)), HostMAC: [6]byte([]byte(hostMAC)), Unchecked: unchecked,
		},
		{
			Addrs: []netip.Addr{netip.MustParseAddr(other4), netip.MustParseAddr(other6)}, Index: 2,
			MAC: [6]byte([]byte(otherMAC)), HostMAC: [6]byte([]byte(hostMAC)),
		},
	}
	if _, err := w.maps.SetPods(pods); err != nil {
		t.Fatal(err)
	}
	return w
}

// sent is a frame that a pod sends, with the pod's own MAC address unless it names another.
type sent struct {
	what  string
	frame []byte
	mac   string
	want  string // "pass", or the reason for which it is dropped
	even  bool   // the same for a pod that may send from any address
}

func (s sent) bytes() []byte {
	frame := bytes.Clone(s.frame)
	if s.mac == "" {
		s.mac = podMAC
	}
	copy(frame, hostMAC)
	copy(frame[6:], s.mac)
	return frame
}

func brackets(addr string) string {
	if strings.Contains(addr, ":") {
		return "[" + addr + "]"
	}
	return addr
}

func tcpFrom(from, to string) []byte {
	return packet{from: brackets(from) + ":4000", to: brackets(to) + ":80", proto: tcp, flags: syn}.bytes()
}

func udpFrom(from string, sport string, to string, dport string) []byte {
	return packet{from: brackets(from) + ":" + sport, to: brackets(to) + ":" + dport, proto: udp}.bytes()
}

func icmpFrom(from, to string, kind byte, body []byte) []byte {
	return message{from: from, to: to, kind: kind, body: body, ttl: 255}.bytes()
}

// arpFrom returns an ARP frame: op 1 asks, 2 answers.
func arpFrom(op byte, mac, from, target string) []byte {
	frame := append(make([]byte, 12), 8, 6, 0, 1, 8, 0, 6, 4, 0, op)
	frame = append(append(frame, mac...), netip.MustParseAddr(from).AsSlice()...)
	return append(append(frame, make([]byte, 6)...), netip.MustParseAddr(target).AsSlice()...)
}

// about returns the body of a neighbor message about an address, with an option that has a MAC
// address.
func about(addr string) []byte {
	return append(netip.MustParseAddr(addr).AsSlice(), append([]byte{2, 1}, podMAC...)...)
}

// listening returns a multicast listener report, after a header of hop-by-hop options, as in RFC
// 3810.
func listening(from string) []byte {
	frame := icmpFrom(from, "ff02::16", 143, make([]byte, 20))
	frame = append(bytes.Clone(frame[:54]), append([]byte{58, 0, 5, 2, 0, 0, 1, 0}, frame[54:]...)...)
	frame[20] = 0
	binary.BigEndian.PutUint16(frame[18:], uint16(len(frame)-54))
	return frame
}

func tagged(frame []byte) []byte {
	return append(append(bytes.Clone(frame[:12]), 0x81, 0, 0, 5), frame[12:]...)
}

func ofType(frame []byte, kind uint16) []byte {
	frame = bytes.Clone(frame)
	binary.BigEndian.PutUint16(frame[12:], kind)
	return frame
}

func hidden(frame []byte, header byte) []byte {
	next := frame[20]
	frame = append(bytes.Clone(frame[:54]), append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, frame[54:]...)...)
	frame[20] = header
	binary.BigEndian.PutUint16(frame[18:], uint16(len(frame)-54))
	return frame
}

// frames returns what a pod may send, and what it may not.
func frames() []sent {
	return []sent{
		{"its own, IPv4", tcpFrom(pod4, outside4), "", "pass", false},
		{"its own, IPv6", tcpFrom(pod6, outside6), "", "pass", false},
		{"a datagram, IPv4", udpFrom(pod4, "53", outside4, "4000"), "", "pass", false},
		{"a datagram, IPv6", udpFrom(pod6, "53", outside6, "4000"), "", "pass", false},
		{"an echo, IPv4", icmpFrom(pod4, outside4, 8, nil), "", "pass", false},
		{"an echo, IPv6", icmpFrom(pod6, outside6, 128, nil), "", "pass", false},
		{"to another pod, IPv4", tcpFrom(pod4, other4), "", "pass", false},
		{"to another pod, IPv6", tcpFrom(pod6, other6), "", "pass", false},
		{"with options of IPv4", packet{from: pod4 + ":1", to: outside4 + ":2", proto: tcp, options: 2}.bytes(), "", "pass", false},
		{"a later fragment, IPv4", datagram{from: pod4, to: outside4, proto: udp, fragment: 100, payload: make([]byte, 64)}.bytes(), "", "pass", false},
		{"a later fragment, IPv6", datagram{from: pod6, to: outside6, proto: udp, fragment: 100, payload: make([]byte, 64)}.bytes(), "", "pass", false},
		{"what has no ports", datagram{from: pod4, to: outside4, proto: 47, payload: make([]byte, 64)}.bytes(), "", "pass", false},

		{"another pod's address, IPv4", tcpFrom(other4, outside4), "", "spoofed", false},
		{"another pod's address, IPv6", tcpFrom(other6, outside6), "", "spoofed", false},
		{"another pod's, to the node", udpFrom(other4, "1", "192.0.2.1", "2"), "", "spoofed", false},
		{"the node's address, IPv4", tcpFrom("192.0.2.1", outside4), "", "spoofed", false},
		{"the node's address, IPv6", tcpFrom("2001:db8::1", outside6), "", "spoofed", false},
		{"an address outside, IPv4", udpFrom(outside4, "1", other4, "2"), "", "spoofed", false},
		{"an address outside, IPv6", udpFrom(outside6, "1", other6, "2"), "", "spoofed", false},
		{"another's with options", packet{from: other4 + ":1", to: outside4 + ":2", proto: tcp, options: 2}.bytes(), "", "spoofed", false},
		{"another's in a later fragment, IPv4", datagram{from: other4, to: outside4, proto: udp, fragment: 100, payload: make([]byte, 64)}.bytes(), "", "spoofed", false},
		{"another's in a later fragment, IPv6", datagram{from: other6, to: outside6, proto: udp, fragment: 100, payload: make([]byte, 64)}.bytes(), "", "spoofed", false},
		{"another's echo", icmpFrom(other4, outside4, 8, nil), "", "spoofed", false},
		{"another's answer to an echo, IPv6", icmpFrom(other6, outside6, 129, nil), "", "spoofed", false},
		{"loopback's address, IPv4", tcpFrom("127.0.0.1", other4), "", "spoofed", false},
		{"loopback's address, IPv6", tcpFrom("::1", other6), "", "spoofed", false},
		{"the broadcast address", udpFrom("255.255.255.255", "1", other4, "2"), "", "spoofed", false},
		{"a group's address, IPv4", udpFrom("224.0.0.1", "1", other4, "2"), "", "spoofed", false},
		{"a group's address, IPv6", udpFrom("ff02::1", "1", other6, "2"), "", "spoofed", false},
		{"its own, of IPv4, written as of IPv6", tcpFrom("::ffff:"+pod4, outside6), "", "spoofed", true},
		{"to IPv4, written as of IPv6", tcpFrom(pod6, "::ffff:"+other4), "", "spoofed", true},
		{"nobody's, IPv4", tcpFrom("0.0.0.0", outside4), "", "spoofed", false},
		{"nobody's, IPv6", tcpFrom("::", outside6), "", "spoofed", false},
		{"nobody's, IPv6, to a neighbor", udpFrom("::", "1", everyone, "2"), "", "spoofed", false},
		{"its link's address, to beyond", tcpFrom(link6, other6), "", "spoofed", false},
		{"its link's address, to a group beyond", udpFrom(link6, "1", "ff05::2", "2"), "", "spoofed", false},

		{"another's hardware address, IPv4", tcpFrom(pod4, outside4), otherMAC, "spoofed-link", true},
		{"another's hardware address, IPv6", tcpFrom(pod6, outside6), otherMAC, "spoofed-link", true},
		{"the node's hardware address", tcpFrom(pod4, outside4), hostMAC, "spoofed-link", true},
		{"another's hardware address in ARP", arpFrom(1, podMAC, pod4, "169.254.1.1"), otherMAC, "spoofed-link", true},
		{"a hardware address that differs at its end", tcpFrom(pod4, outside4), "\x02\x00\x00\x00\x01\x05", "spoofed-link", true},

		{"who has the gateway", arpFrom(1, podMAC, pod4, "169.254.1.1"), "", "pass", false},
		{"is its address free", arpFrom(1, podMAC, "0.0.0.0", pod4), "", "pass", false},
		{"I have mine", arpFrom(2, podMAC, pod4, "169.254.1.1"), "", "pass", false},
		{"I have another pod's", arpFrom(2, podMAC, other4, "169.254.1.1"), "", "neighbor", false},
		{"I have the gateway's", arpFrom(1, podMAC, "169.254.1.1", "169.254.1.1"), "", "neighbor", false},
		{"another has mine", arpFrom(2, otherMAC, pod4, "169.254.1.1"), "", "neighbor", false},
		{"ARP of another kind", append(arpFrom(1, podMAC, pod4, other4)[:15], append([]byte{6}, arpFrom(1, podMAC, pod4, other4)[16:]...)...), "", "protocol", false},
		{"half of ARP", arpFrom(1, podMAC, pod4, other4)[:30], "", "malformed", false},

		{"who has the gateway, IPv6", icmpFrom(link6, "ff02::1:ff00:1", 135, about(gateway6)), "", "pass", false},
		{"who has the gateway, from its own", icmpFrom(pod6, gateway6, 135, about(gateway6)), "", "pass", false},
		{"is its address free, IPv6", icmpFrom("::", "ff02::1:ff00:5", 135, about(pod6)[:16]), "", "pass", false},
		{"I have mine, IPv6", icmpFrom(pod6, gateway6, 136, about(pod6)), "", "pass", false},
		{"I have my link's", icmpFrom(link6, gateway6, 136, about(link6)), "", "pass", false},
		{"I have another pod's, IPv6", icmpFrom(link6, gateway6, 136, about(other6)), "", "neighbor", false},
		{"I have another's, from its own", icmpFrom(pod6, everyone, 136, about(outside6)), "", "neighbor", false},
		{"I have another's, behind options", hidden(icmpFrom(link6, everyone, 136, about(other6)), 60), "", "neighbor", false},
		{"half of I have", icmpFrom(link6, gateway6, 136, about(link6)[:9]), "", "malformed", false},
		{"who is the router", icmpFrom(link6, routers, 133, nil), "", "pass", false},
		{"who is the router, from nobody", icmpFrom("::", routers, 133, nil), "", "pass", false},
		{"I am the router", icmpFrom(link6, everyone, 134, make([]byte, 8)), "", "router", false},
		{"I am the router, from its own", icmpFrom(pod6, everyone, 134, make([]byte, 8)), "", "router", false},
		{"I am the router, behind options", hidden(icmpFrom(link6, everyone, 134, make([]byte, 8)), 60), "", "router", false},
		{"the way is another", icmpFrom(link6, everyone, 137, make([]byte, 32)), "", "router", false},
		{"what groups it listens to", listening(link6), "", "pass", false},
		{"what groups, from nobody", listening("::"), "", "pass", false},
		{"what groups, another's", listening(other6), "", "spoofed", false},
		{"to a neighbor by a name of the link", udpFrom(link6, "5353", "ff02::fb", "5353"), "", "pass", false},

		{"who has an address for me", udpFrom("0.0.0.0", "68", "255.255.255.255", "67"), "", "pass", false},
		{"who has one, to one host", udpFrom("0.0.0.0", "68", outside4, "67"), "", "spoofed", false},
		{"who has one, IPv6", udpFrom(link6, "546", "ff02::1:2", "547"), "", "pass", false},
		{"I have one for you", udpFrom(pod4, "67", "255.255.255.255", "68"), "", "dhcp", false},
		{"I have one for you, from its link's", udpFrom(link6, "547", everyone, "546"), "", "dhcp", false},
		{"I have one for you, from its own", udpFrom(pod6, "547", other6, "546"), "", "dhcp", false},
		{"I have one for you, behind options", hidden(udpFrom(pod6, "547", other6, "546"), 60), "", "dhcp", false},
		{"I have one for you, with options", packet{from: pod4 + ":67", to: outside4 + ":68", proto: udp, options: 1}.bytes(), "", "dhcp", false},

		{"to loopback, IPv4", tcpFrom(pod4, "127.0.0.1"), "", "loopback", true},
		{"to loopback, elsewhere in its net", udpFrom(pod4, "1", "127.9.9.9", "2"), "", "loopback", true},
		{"to loopback, IPv6", tcpFrom(pod6, "::1"), "", "loopback", true},
		{"to loopback, another's", tcpFrom(other4, "127.0.0.1"), "", "loopback", true},

		{"with a tag", tagged(tcpFrom(pod4, outside4)), "", "protocol", true},
		{"of no protocol that is spoken here", ofType(tcpFrom(pod4, outside4), 0x88cc), "", "protocol", true},
		{"labeled", ofType(tcpFrom(pod4, outside4), 0x8847), "", "protocol", true},
		{"of IPv4, but says IPv6", ofType(tcpFrom(pod4, outside4), 0x86dd), "", "malformed", true},
		{"of IPv6, but says IPv4", ofType(tcpFrom(pod6, outside6), 0x0800), "", "malformed", true},
		{"half of a header", tcpFrom(other4, outside4)[:40], "", "malformed", true},
	}
}

// A pod may send packets from its own addresses, and what a host must say on its link, and nothing
// else; each dropped frame is counted for its reason.
func TestSender(t *testing.T) {
	for _, unchecked := range []bool{false, true} {
		w := newBareNodeTwoPods(t, standardConfig(), unchecked)
		for _, s := range frames() {
			want := s.want
			if unchecked && !s.even {
				want = "pass"
			}
			before := w.reasons(t)
			verdict, out := w.run(t, w.in, s.bytes())
			after := w.reasons(t)
			if want == "pass" {
				if verdict != "pass" || !bytes.Equal(out, s.bytes()) || len(before) != len(after) {
					t.Errorf("%s (unchecked %t): %s, %v, want it as it was: %x", s.what, unchecked, verdict, after, out)
				}
				continue
			}
			if verdict != "drop" || after[want] != before[want]+1 {
				t.Errorf("%s (unchecked %t): %s, counted %v, before %v, want it dropped as %s", s.what, unchecked, verdict, after, before, want)
			}
		}
	}
}

// A device that is not registered yet sends nothing.
func TestSenderUnknown(t *testing.T) {
	w := newBareNodeTwoPods(t, standardConfig(), false)
	if _, err := w.maps.SetPods(nil); err != nil {
		t.Fatal(err)
	}
	for _, s := range frames() {
		if verdict, _ := w.run(t, w.in, s.bytes()); verdict != "drop" {
			t.Errorf("%s: %s, want it dropped", s.what, verdict)
		}
	}
}

// shortest returns the length of the shortest part of a frame on which the kernel runs a program.
func shortest(frame []byte) int {
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		return 14 + 20
	case 0x86dd:
		return 14 + 40
	}
	return 14
}

// Truncation anywhere does not let a packet with another's address through.
func TestSenderCut(t *testing.T) {
	w := newBareNodeTwoPods(t, standardConfig(), false)
	for _, s := range frames() {
		frame := s.bytes()
		for n := shortest(frame); n < len(frame); n++ {
			verdict, _ := w.run(t, w.in, frame[:n])
			if s.want == "spoofed" && verdict != "drop" {
				t.Errorf("%s, cut to %d bytes: %s, want it dropped", s.what, n, verdict)
			}
		}
	}
}
