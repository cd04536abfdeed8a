package podnet

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bigtcp"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

const (
	usualFrame = 64<<10 + 100 // with headers
	largeFrame = 128 << 10
)

// newBig returns the controller that makes TCP packets larger, with eth0 as the device to the outside.
func newBig(dir string, byStack bool) (*bigtcp.Controller, error) {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return nil, err
	}
	list := []devices.Device{{Name: "eth0", Index: link.Attrs().Index}}
	cfg := bigtcp.Config{Dir: dir, Log: slog.Default(), Devices: func() []devices.Device { return list }}
	if byStack {
		cfg.Why6 = "the stack forwards none"
	}
	controller := bigtcp.New(cfg)
	if problem := controller.Status().Error; problem != "" {
		return nil, errors.New(problem)
	}
	return controller, nil
}

// weigh prints the size of the largest frame that came in until its input ended.
func weigh([]string) int {
	err := func() error {
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20); err != nil {
			return err
		}
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		most := 0
		for {
			n, _, _, from, err := unix.Recvmsg(fd, make([]byte, 1), nil, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				fmt.Println(most)
				return nil
			}
			if err != nil {
				return err
			}
			if at, ok := from.(*unix.SockaddrLinklayer); ok && at.Pkttype != unix.PACKET_OUTGOING {
				most = max(most, n)
			}
		}
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// TestBig checks that TCP packets larger than 64 KiB get everywhere in one piece, through programs
// that check, translate and redirect them, and that none is made where they would not.
func TestBig(t *testing.T) {
	for _, bypass := range []bool{true, false} {
		t.Run(map[bool]string{true: "past the stack", false: "by the stack"}[bypass], func(t *testing.T) {
			w := newOneNodeOf(t, bypass, func(s *agentConfig) { s.Big = true })
			w.must(w.outside.Do(func() error { // as on another node with large packets
				_, err := newBig(t.TempDir(), !bypass)
				return err
			}))
			rig.Route(t, w.outside, "10.1.0.0/24", "198.51.100.1")
			rig.Route(t, w.outside, "fd00:1::/64", "2001:db8:1::1")
			a, b := w.pods[0], w.pods[1]
			for _, is4 := range []bool{true, false} {
				w.serve(t, clusterIP(is4, 10), b.addr[is4])
				w.serve(t, clusterIP(is4, 11), outsiders[is4])
				w.serveAs(t, maps.ExternalIP, clusterIP(is4, 12), outsiders[is4])
				rig.Route(t, w.outside, netip.PrefixFrom(clusterIP(is4, 12), clusterIP(is4, 12).BitLen()).String(), nodeOutsideAddrs[is4].String())
				for _, way := range []struct {
					what string
					from *rig.Netns
					to   netip.Addr
					at   *rig.Netns
					seen netip.Addr
				}{
					{"pod to pod", a.Netns, b.addr[is4], b.Netns, a.addr[is4]},
					{"pod to outside", a.Netns, outsiders[is4], w.outside, nodeOutsideAddrs[is4]},
					{"pod to node", a.Netns, nodeAddrs[is4], w.ns, a.addr[is4]},
					{"node to pod", w.ns, b.addr[is4], b.Netns, nodeAddrs[is4]},
					{"outside to pod", w.outside, b.addr[is4], b.Netns, outsiders[is4]},
					{"pod to pod by a service", a.Netns, clusterIP(is4, 10), b.Netns, a.addr[is4]},
					{"pod to outside by a service", a.Netns, clusterIP(is4, 11), w.outside, nodeOutsideAddrs[is4]},
					{"outside to outside by a service", w.outside, clusterIP(is4, 12), w.outside, nodeOutsideAddrs[is4]},
				} {
					large := is4 || bypass
					frame := w.largest(way.from, way.to, way.seen, way.at, large)
					t.Logf("%s, IPv4 %t: %d bytes", way.what, is4, frame)
					if large != (frame > largeFrame) || !large && frame > usualFrame {
						t.Errorf("%s, IPv4 %t: the largest packet has %d bytes", way.what, is4, frame)
					}
				}
			}
			// Pods keep their sizes when those of the node's devices are restored; the kernel then
			// segments packets that are too large.
			w.must(w.ns.Do(func() error { _, err := bigtcp.Restore(w.Dir); return err }))
			for is4, to := range outsiders {
				if frame := w.largest(a.Netns, to, nodeOutsideAddrs[is4], w.outside, false); frame > usualFrame {
					t.Errorf("after that, IPv4 %t: the largest packet has %d bytes", is4, frame)
				}
			}
		})
	}
}

// largest has one namespace send much to another, and returns the size of the largest frame that
// comes in there. How large the kernel makes packets depends on how fast they are acknowledged, so
// it sends again if none was as large as allowed.
func (w *oneNode) largest(from *rig.Netns, to, seen netip.Addr, at *rig.Netns, large bool) (size int) {
	w.t.Helper()
	for range 10 {
		scale := rig.NewChild(w.t, nil, at, "weigh")
		if line, err := scale.ReadLine(); err != nil || line != "ready" {
			w.t.Fatalf("the scale said %q, %v", line, err)
		}
		if got := talk(w.t, from, "bulk", to); got != seen.String() {
			w.t.Errorf("%s: came from %s, want %s", to, got, seen)
		}
		w.must(scale.Stdin.Close())
		line, err := scale.ReadLine()
		w.must(err)
		size, err = strconv.Atoi(line)
		w.must(err)
		if !large || size > largeFrame {
			break
		}
	}
	return size
}
