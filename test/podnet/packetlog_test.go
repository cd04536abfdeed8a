package podnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/test/rig"
)

// packetLog listens at the devices of namespaces, so that a test can say where a packet was lost.
type packetLog struct {
	sockets []packetSocket
	began   time.Time
}

type packetSocket struct {
	ns *rig.Netns
	fd int
}

// logPackets logs the packets at all devices of the namespaces from now on.
func logPackets(t *testing.T, namespaces ...*rig.Netns) *packetLog {
	t.Helper()
	w := &packetLog{began: time.Now()}
	for _, ns := range namespaces {
		err := ns.Do(func() error {
			const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all)
			if err != nil {
				return err
			}
			w.sockets = append(w.sockets, packetSocket{ns, fd})
			return errors.Join(
				unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
				unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1))
		})
		if err != nil {
			t.Fatalf("listen at the devices of %s: %v", ns, err)
		}
	}
	t.Cleanup(func() {
		for _, s := range w.sockets {
			unix.Close(s.fd)
		}
	})
	return w
}

// list lists the packets that were seen, by namespace.
func (w *packetLog) list() string {
	var text strings.Builder
	fmt.Fprintf(&text, "packets since %s\n", w.began)
	for _, s := range w.sockets {
		fmt.Fprintf(&text, "devices of %s:\n", s.ns)
		for {
			data, control := make([]byte, 128), make([]byte, 128)
			n, c, _, from, err := unix.Recvmsg(s.fd, data, control, 0)
			if err != nil {
				if !errors.Is(err, unix.EAGAIN) {
					fmt.Fprintln(&text, err)
				}
				break
			}
			what := describePacket(data[:n])
			at, ok := from.(*unix.SockaddrLinklayer)
			if what == "" || !ok {
				continue
			}
			direction := "in"
			if at.Pkttype == unix.PACKET_OUTGOING {
				direction = "out"
			}
			fmt.Fprintf(&text, "  %8.3f device %d %s: %s\n", w.since(control[:c]).Seconds(), at.Ifindex, direction, what)
		}
	}
	return text.String()
}

// since returns when the kernel saw a packet.
func (w *packetLog) since(control []byte) time.Duration {
	if len(control) < unix.CmsgSpace(16) {
		return 0
	}
	at := control[unix.CmsgLen(0):]
	return time.Unix(int64(binary.NativeEndian.Uint64(at)), int64(binary.NativeEndian.Uint64(at[8:]))).Sub(w.began)
}

// describePacket describes a packet of UDP, TCP or ICMP; "" stands for any other.
func describePacket(p []byte) string {
	if len(p) < 28 {
		return ""
	}
	proto, at := p[9], 20
	src, dst := netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:]))
	if p[0]>>4 == 6 {
		if len(p) < 48 {
			return ""
		}
		proto, at = p[6], 40
		src, dst = netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:]))
	} else if p[0]>>4 != 4 {
		return ""
	}
	port := func(i int) uint16 { return binary.BigEndian.Uint16(p[at+i:]) }
	switch proto {
	case unix.IPPROTO_UDP:
		return fmt.Sprintf("UDP %s > %s", netip.AddrPortFrom(src, port(0)), netip.AddrPortFrom(dst, port(2)))
	case unix.IPPROTO_TCP:
		if len(p) > at+13 {
			return fmt.Sprintf("TCP %s > %s flags %#x", netip.AddrPortFrom(src, port(0)), netip.AddrPortFrom(dst, port(2)), p[at+13])
		}
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return fmt.Sprintf("ICMP type %d code %d %s > %s", p[at], p[at+1], src, dst)
	}
	return ""
}

// losses says what a node has counted that may have become of packets.
func (n *node) losses() string {
	var text strings.Builder
	for _, file := range []string{"netfilter/nfnetlink_queue", "stat/nf_conntrack", "stat/ndisc_cache", "stat/arp_cache", "snmp6"} {
		err := n.ns.Do(func() error {
			content, err := os.ReadFile("/proc/thread-self/net/" + file)
			fmt.Fprintf(&text, "%s of %s:\n", file, n.ns)
			for line := range strings.Lines(string(content)) {
				if pair := strings.Fields(line); len(pair) != 2 || pair[1] != "0" {
					fmt.Fprintf(&text, "  %s", line)
				}
			}
			return err
		})
		if err != nil {
			fmt.Fprintf(&text, "  %v\n", err)
		}
	}
	drops, err := reasons.ReadDrops(datapath.MapsDir(n.Forwarding.BPFFS))
	drops = slices.DeleteFunc(drops, func(d reasons.Drop) bool { return d.Packets == 0 })
	fmt.Fprintf(&text, "drops of the programs: %v, %v\n", drops, err)
	return text.String()
}
