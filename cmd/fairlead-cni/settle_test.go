package main

import (
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// ADD is not done before both ends can send.
func TestSettle(t *testing.T) {
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
		if err := p.create(s, "eth0", 1500); err != nil {
			return err
		}
		if err := p.prepare(s.node, "", nil); err != nil {
			return err
		}
		const late = 200 * time.Millisecond
		time.AfterFunc(late, func() {
			link, err := s.handle.LinkByName("eth0")
			if err == nil {
				err = s.handle.LinkSetUp(link)
			}
			if err != nil {
				t.Error(err)
			}
		})
		began := time.Now()
		if err := p.settle(s, "eth0"); err != nil {
			return err
		}
		if took := time.Since(began); took < late {
			t.Errorf("settled after %v, when the pod's end was down", took)
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
