package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// self is a node's own sockets: what they send leaves through the link to the outside, which has
// the default route, and they get what the programs leave to the node.
type self struct {
	*routerTwoPods
	out, in *os.File
}

// own runs a story on a node with two pods that sends packets to services itself, with and without the
// shortcuts.
func own(t *testing.T, story func(t *testing.T, s *self, f family)) {
	t.Helper()
	rig.Root(t)
	for name, f := range families() {
		for _, on := range []uint32{0, 1} {
			t.Run(name+map[uint32]string{0: " by the stack", 1: " past it, masquerading"}[on], func(t *testing.T) {
				t.Parallel()
				config := standardConfig()
				config.Bypass, config.Masquerade, config.HostFlows = on, uint16(on), 1
				h := newRouterTwoPodsOf(t, f, config)
				h.outside.reach(t, h.remote, true)
				h.outside.reach(t, f.client, true)
				h.native(t, map[bool]string{true: "::/0", false: "0.0.0.0/0"}[f.any == "[::]"])
				proto := uint16(unix.ETH_P_IP)
				if f.any == "[::]" {
					proto = unix.ETH_P_IPV6
				}
				story(t, &self{routerTwoPods: h, out: h.frames(t, 0, h.outside), in: h.frames(t, proto, nil)}, f)
			})
		}
	}
}

// frames opens a socket of the node itself: for frames that leave through a link, or for those of a
// protocol that reach its stack through any link.
func (h *routerTwoPods) frames(t *testing.T, proto uint16, w *wire) *os.File {
	t.Helper()
	var socket *os.File
	err := h.netns.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		socket = os.NewFile(uintptr(fd), "frames")
		at := &unix.SockaddrLinklayer{Protocol: binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, proto))}
		if w != nil {
			at.Ifindex = w.near.Attrs().Index
		}
		return unix.Bind(fd, at)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return socket
}

// put sends a frame to the router outside. The sender of a packet dropped on its way out gets
// ENOBUFS.
func (s *self) put(t *testing.T, frame []byte) {
	t.Helper()
	copy(frame, s.outside.macs(false))
	if _, err := s.out.Write(frame); err != nil && !errors.Is(err, unix.ENOBUFS) {
		t.Fatal(err)
	}
}

func (s *self) send(t *testing.T, p packet) {
	t.Helper()
	p.macs = s.outside.macs(false)
	s.put(t, p.bytes())
}

// hears returns the next wanted frame that reaches the node's stack, without its link header.
func (s *self) hears(t *testing.T, what string, wanted func(frame []byte) bool) []byte {
	t.Helper()
	if err := s.in.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for frame := make([]byte, 65536); ; {
		n, err := s.in.Read(frame)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%s: the node hears nothing; counted: %v at tc, %v at pods' devices", what, s.reasons(t), podReasons(t, s.routerTwoPods))
		}
		if err != nil {
			t.Fatal(err)
		}
		if wanted(frame[:n]) {
			return bytes.Clone(frame[14:n])
		}
	}
}

// wants fails unless the packet is the next one with ports that reaches the node's stack. A source
// port of zero stands for any; wants returns the actual one.
func (s *self) wants(t *testing.T, p packet) string {
	t.Helper()
	frame := s.hears(t, p.from+" to "+p.to, hasPorts)
	port := portOf(append(make([]byte, 14), frame...), s.f)
	if strings.HasSuffix(p.from, ":0") {
		p.from = strings.TrimSuffix(p.from, "0") + port
	}
	if want := p.bytes()[14:]; !bytes.Equal(frame, want) {
		t.Fatalf("have  %x\nwant  %x (%s to %s)", frame, want, p.from, p.to)
	}
	return p.from
}

// wantsICMP fails unless the message is the next of its kind that reaches the node's stack.
func (s *self) wantsICMP(t *testing.T, what string, want []byte) {
	t.Helper()
	want = want[14:]
	at := 20
	if s.f.any == "[::]" {
		at = 40
	}
	have := s.hears(t, what, func(frame []byte) bool {
		return len(frame) > 14+at && frame[14+at] == want[at] && (frame[14+9] == unix.IPPROTO_ICMP && at == 20 || frame[14+6] == unix.IPPROTO_ICMPV6 && at == 40)
	})
	if !bytes.Equal(have, want) {
		t.Fatalf("%s:\nhave  %x\nwant  %x", what, have, want)
	}
}

// mate is a backend of a service that the node itself dials.
type mate struct {
	what string
	wire *wire // nil: the node itself
	addr string
	here bool
}

func (s *self) mates() []mate {
	return []mate{
		{"a pod", s.pods[1], s.addrs[1], true},
		{"a pod of which nobody said that it is here", s.pods[0], s.addrs[0], false},
		{"on another node", s.outside, s.f.client, false},
		{"the node", nil, s.f.snat, true},
		{"the very address", nil, s.f.node, true},
	}
}

// seen returns the client that a mate sees: one of the node's ports, or the service.
func (m mate) seen(client, frontend string) string {
	port := client[strings.LastIndex(client, ":")+1:]
	if m.wire == nil {
		return frontend[:strings.LastIndex(frontend, ":")+1] + port
	}
	if len(port) < 4 {
		return client
	}
	return client[:strings.LastIndex(client, ":")] + ":0"
}

// gets fails unless a backend gets the packet, like want and wants.
func (s *self) gets(t *testing.T, m mate, p packet) string {
	t.Helper()
	if m.wire == nil {
		return s.wants(t, p)
	}
	return m.wire.want(t, p)
}

// answers has a backend send a packet.
func (s *self) answers(t *testing.T, m mate, p packet) {
	t.Helper()
	if m.wire == nil {
		s.send(t, p)
	} else {
		m.wire.send(t, p)
	}
}
