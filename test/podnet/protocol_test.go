package podnet

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/test/rig"
)

// TestProtocol is the attack of a pod with CAP_NET_RAW that tells the kernel another protocol than
// its frame's header does. The stack goes by what it was told, and reads the tag of VLAN 0 where by
// the header IPv6 of the pod's link begins: behind it is IPv4 from any source. A veth reads the
// header once more, a netkit does not.
func TestProtocol(t *testing.T) {
	rig.Root(t)
	testProtocol(t, cni.Veth)
}

func TestNetkitProtocol(t *testing.T) {
	rig.Root(t)
	needNetkit(t)
	testProtocol(t, cni.Netkit)
}

func testProtocol(t *testing.T, kind cni.Kind) {
	w := newOneNodeOf(t, true, func(s *agentConfig) { s.Kind = kind })
	attacker, victim := w.pods[0], w.pods[1]
	received := w.receives(t, victim)
	for _, protocol := range []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD} {
		before, dropped := received(t), w.dropped(t)
		attacker.emit(t, protocol, disguised(attacker.macs(t), netip.MustParseAddr("192.0.2.77"), victim.addr[true]))
		if n := received(t) - before; n != 0 {
			t.Errorf("protocol %#x: %d forged packets arrive", protocol, n)
		}
		if n := w.dropped(t) - dropped; (n == 1) != (kind == cni.Netkit) {
			t.Errorf("protocol %#x: %d packets dropped", protocol, n)
		}
		emitted := append(attacker.macs(t), datagramFrom(attacker.addr[true], victim.addr[true])[12:]...)
		attacker.emit(t, unix.ETH_P_IP, emitted)
		if n := received(t) - before; n != 1 {
			t.Errorf("protocol %#x: %d honest packets arrive, want 1", protocol, n)
		}
	}
}

// disguised returns a frame with an IPv6 header of the link whose bytes are a VLAN tag and a whole
// datagram of IPv4 too.
func disguised(macs []byte, from, to netip.Addr) []byte {
	datagram := datagramFrom(from, to)[14:]
	binary.BigEndian.PutUint16(datagram[2:], 0x0140)  // as IPv6 sees it: protocol 1 and 64 hops
	binary.BigEndian.PutUint16(datagram[4:], 0xfe80)  // the source
	binary.BigEndian.PutUint16(datagram[20:], 0xfe80) // the destination
	binary.BigEndian.PutUint16(datagram[24:], 0x0140-20)
	binary.BigEndian.PutUint16(datagram[10:], 0)
	binary.BigEndian.PutUint16(datagram[10:], sumOf(datagram[:20]))
	frame := append(append(macs, 0x86, 0xdd, 0x60, 0, 8, 0), datagram...)
	return append(frame, make([]byte, 0x0140-len(datagram))...)
}

// macs returns the MAC addresses of a frame from the pod to its node.
func (p *pod) macs(t *testing.T) (macs []byte) {
	t.Helper()
	if err := p.Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		neighbors, err := netlink.NeighList(eth0.Attrs().Index, netlink.FAMILY_V4)
		if err == nil && len(neighbors) > 0 {
			macs = append(append(macs, neighbors[0].HardwareAddr...), eth0.Attrs().HardwareAddr...)
		}
		return err
	}); err != nil || len(macs) != 12 {
		t.Fatalf("the pod does not know its node's end: %v", err)
	}
	return macs
}

// emit sends a frame by the pod's device, and tells the kernel its protocol.
func (p *pod) emit(t *testing.T, protocol uint16, frame []byte) {
	t.Helper()
	if err := p.Do(func() error {
		device, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		err = unix.Sendto(socket, frame, 0, &unix.SockaddrLinklayer{Ifindex: device.Attrs().Index, Protocol: protocol<<8 | protocol>>8})
		if errors.Is(err, unix.ENOBUFS) { // a netkit says that its program dropped the frame
			return nil
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// receives returns a function that counts the datagrams of IPv4 that have reached the port to which
// datagramFrom sends, and first lets what was sent arrive.
func (w *oneNode) receives(t *testing.T, p *pod) func(*testing.T) int {
	t.Helper()
	var socket int
	w.must(p.Do(func() (err error) {
		if socket, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(socket, &unix.SockaddrInet4{Port: 9})
	}))
	t.Cleanup(func() { unix.Close(socket) })
	total := 0
	return func(t *testing.T) int {
		t.Helper()
		w.must(w.ns.Do(func() error { // the node's own datagram comes behind all others
			last, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(last)
			return unix.Sendto(last, []byte("last"), 0, &unix.SockaddrInet4{Addr: p.addr[true].As4(), Port: 9})
		}))
		w.must(p.Do(func() error {
			for buffer := make([]byte, 2000); ; total++ {
				n, _, err := unix.Recvfrom(socket, buffer, 0)
				if err != nil || string(buffer[:n]) == "last" {
					return err
				}
			}
		}))
		return total
	}
}
