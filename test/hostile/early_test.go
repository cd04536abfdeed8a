package hostile

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/test/rig"
)

// TestEarly is the attack of a pod that already runs when it gets its interface, as with a second
// network: it sends from an address that is not its own from the moment it has the device. Nothing
// arrives, since the device carries nothing before programs check what comes out of it; what the pod
// sends honestly afterwards does.
func TestEarly(t *testing.T) {
	w := newNodesOnLAN(t, 1)
	there := listen(t, w.outside, 400)
	to := netip.MustParseAddrPort("198.51.100.200:400")
	sent := 0
	for i := range 10 {
		name := fmt.Sprintf("early%d", i)
		node, pod := cni.Attachment{Network: "pods", Container: name, IfName: "eth0"}.MACs()
		forged := datagram(netip.MustParseAddrPort("203.0.113.9:99"), to, []byte("forged"))
		attacker := rig.NewNetns(t, name)
		stop := insist(t, attacker, slices.Concat(node, pod, etherType(to.Addr()), forged))
		own := w.nodes[0].podIn(attacker, name).addr[true]
		sent += stop()
		send(t, attacker, netip.AddrPortFrom(own, 0), to, name)
		hear(t, there, name, "forged")
	}
	if sent == 0 {
		t.Error("the attacker sent nothing")
	}
}

// insist sends a frame by a namespace's eth0 again and again, from before there is one. It returns a
// function that ends this and returns how often a frame was sent.
func insist(t *testing.T, ns *rig.Netns, frame []byte) (stop func() int) {
	t.Helper()
	var ended atomic.Bool
	sent, done := 0, make(chan error, 1)
	go func() {
		done <- ns.Do(func() error {
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			name, err := unix.NewIfreq("eth0")
			for err == nil && !ended.Load() {
				// The device is down or missing at first.
				if unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, name) != nil {
					continue
				}
				err = unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: int(name.Uint32())})
				if err == nil {
					sent++
				}
				if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOBUFS) {
					err = nil
				}
			}
			return err
		})
	}()
	return func() int {
		ended.Store(true)
		must(t, <-done)
		return sent
	}
}
