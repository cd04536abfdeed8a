package podnet

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/test/rig"
)

// waits returns the queues of a device as "parent kind", without those that the kernel makes by
// itself.
func waits(name string) (list []string, err error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	all, err := netlink.QdiscList(link)
	for _, q := range all {
		if at := q.Attrs(); at.Handle != 0 {
			_, part := netlink.MajorMinor(at.Parent)
			if at.Parent == netlink.HANDLE_ROOT {
				part = 0
			}
			list = append(list, fmt.Sprintf("%d %s", part, q.Type()))
		}
	}
	slices.Sort(list)
	return list, err
}

// somebodys returns attributes for a queue that fairlead did not make.
func somebodys(of netlink.Link, handle uint16, parent uint32) netlink.QdiscAttrs {
	return netlink.QdiscAttrs{LinkIndex: of.Attrs().Index, Handle: netlink.MakeHandle(handle, 0), Parent: parent}
}

// TestBandwidthQueues checks that a device that leads out of the node gets fq, one with several
// queues gets one for each, and one whose queue somebody has set up is left alone, and that devices
// that are no longer selected, and in the end all, are as before.
func TestBandwidthQueues(t *testing.T) {
	rig.Root(t)
	needFq(t)
	n := rig.NewNetns(t, "queues")
	err := n.Do(func() error {
		var list []devices.Device
		for name, several := range map[string]int{"one": 1, "four": 4, "own": 1, "fair": 2} {
			veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, NumTxQueues: several, NumRxQueues: several}, PeerName: "p" + name}
			if err := netlink.LinkAdd(veth); err != nil {
				return err
			}
			if err := netlink.LinkSetUp(veth); err != nil {
				return err
			}
			list = append(list, devices.Device{Name: name, Index: veth.Index})
			for _, q := range map[string][]netlink.Qdisc{
				"own": {&netlink.GenericQdisc{QdiscAttrs: somebodys(veth, 1, netlink.HANDLE_ROOT), QdiscType: "pfifo"}},
				"fair": {
					&netlink.GenericQdisc{QdiscAttrs: somebodys(veth, 1, netlink.HANDLE_ROOT), QdiscType: "mq"},
					netlink.NewFq(somebodys(veth, 2, netlink.MakeHandle(1, 1))), netlink.NewFq(somebodys(veth, 3, netlink.MakeHandle(1, 2))),
				},
			}[name] {
				if err := netlink.QdiscReplace(q); err != nil {
					return err
				}
			}
		}
		require := func(when string, one, four []string) {
			t.Helper()
			for name, want := range map[string][]string{"one": one, "four": four, "own": {"0 pfifo"}, "fair": {"0 mq", "1 fq", "2 fq"}} {
				if got, err := waits(name); err != nil || !cmp.Equal(got, want) {
					t.Errorf("%s, %s: %q, %v; want %q", when, name, got, err, want)
				}
			}
		}
		cfg := queues.Config{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Devices: func() []devices.Device { return list }}
		fqs := []string{"0 mq", "1 fq", "2 fq", "3 fq", "4 fq"}
		stats := queues.New(cfg).Status()
		require("at first", []string{"0 fq"}, fqs)
		for name, queues := range map[string]int{"one": 1, "four": 4} {
			requireRoom(t, name, queues, 262_144, 262_144/5)
		}
		if !cmp.Equal(stats.Devices, []string{"fair", "four", "one"}) || len(stats.Lacking) != 1 || stats.Lacking["own"] == "" || stats.Error != "" {
			t.Errorf("at first: %+v", stats)
		}
		cfg.Load = func() queues.Load { return queues.Load{All: 1 << 27, One: 1 << 25} }
		queues.New(cfg)
		require("again", []string{"0 fq"}, fqs)
		for name, queues := range map[string]int{"one": 1, "four": 4} {
			requireRoom(t, name, queues, 1<<19+1<<14, 1<<17)
		}
		all := list
		list = slices.DeleteFunc(slices.Clone(all), func(d devices.Device) bool { return d.Name == "four" })
		queues.New(cfg)
		require("without one", []string{"0 fq"}, nil)
		list = all
		queues.New(cfg)
		names, err := queues.Restore()
		if !cmp.Equal(names, []string{"four", "one"}) {
			t.Errorf("put back: %q", names)
		}
		require("in the end", nil, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// requireRoom fails the test unless a device has so many fq queues, and each takes so many packets
// in all and so many of one flow.
func requireRoom(t *testing.T, name string, queues int, limit, flow uint32) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	all, err := netlink.QdiscList(link)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, q := range all {
		if fq, ok := q.(*netlink.Fq); ok {
			found++
			if fq.PacketLimit != limit || fq.FlowPacketLimit != flow {
				t.Errorf("%s: a queue takes %d packets, %d of a flow", name, fq.PacketLimit, fq.FlowPacketLimit)
			}
		}
	}
	if found != queues {
		t.Errorf("%s has %d queues of fq, want %d", name, found, queues)
	}
}
