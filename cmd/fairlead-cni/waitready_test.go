package main

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// waitReady does not return before both ends can send and the pod knows its addresses.
func TestWaitReady(t *testing.T) {
	rig.Root(t)
	node, pod := rig.NewNetns(t, "node"), rig.NewNetns(t, "pod")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(node.Do(func() error {
		s, err := openSandbox(pod.Path())
		if err != nil {
			return err
		}
		defer s.close()
		c := &call{attachment: cni.Attachment{Network: "pods", Container: "a", IfName: "eth0"}}
		p := &pair{name: c.attachment.Device()}
		p.nodeMAC, p.podMAC = c.attachment.MACs()
		if err := p.create(s, "eth0", &cni.Answer{MTU: 1500}); err != nil {
			return err
		}
		if err := p.setUp(s.node); err != nil {
			return err
		}
		const late = 200 * time.Millisecond
		addr := netip.MustParseAddr("fd00:1::9")
		change := func(fn func(netlink.Link) error) {
			link, err := s.handle.LinkByName("eth0")
			if err == nil {
				err = fn(link)
			}
			if err != nil {
				t.Error(err)
			}
		}
		time.AfterFunc(late, func() { change(s.handle.LinkSetUp) })
		time.AfterFunc(2*late, func() {
			change(func(link netlink.Link) error {
				return s.handle.AddrAdd(link, &netlink.Addr{IPNet: whole(addr), Flags: unix.IFA_F_NODAD})
			})
		})
		began := time.Now()
		if err := p.waitReady(s, "eth0", nil); err != nil {
			return err
		}
		if took := time.Since(began); took < late {
			t.Errorf("ready after %v, while the pod's end was down", took)
		}
		if err := p.waitReady(s, "eth0", []netip.Addr{netip.MustParseAddr("10.1.0.9"), addr}); err != nil {
			return err
		}
		if took := time.Since(began); took < 2*late {
			t.Errorf("ready after %v, while the pod had no address", took)
		}
		for _, look := range []func() (netlink.Link, error){
			func() (netlink.Link, error) { return netlink.LinkByIndex(p.index) },
			func() (netlink.Link, error) { return s.handle.LinkByName("eth0") },
		} {
			link, err := look()
			if err != nil {
				return err
			}
			if link.Attrs().OperState != netlink.OperUp {
				t.Errorf("%s is %s", link.Attrs().Name, link.Attrs().OperState)
			}
		}
		return nil
	}))
}
