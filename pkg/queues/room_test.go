package queues

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
)

// A queue has room for what may wait for rate-limited pods, or for what its link carries.
func TestRoom(t *testing.T) {
	const mbit = 1e6 / 8
	for _, c := range []struct {
		what  string
		load  Load
		speed uint64
		want  room
	}{
		{"nothing is known", Load{}, 0, room{1 << 18, 1 << 18 / 5}},
		{"a link of 1 Gbit/s", Load{}, 1000 * mbit, room{165125, 33025}},
		{"a link of 10 Mbit/s", Load{}, 10 * mbit, room{1 << 14, 1 << 14 / 5}},
		{"a link of 100 Gbit/s", Load{}, 100_000 * mbit, room{1 << 20, 1 << 20 / 5}},
		{"a pod of 10 Mbit/s", Load{All: 2 * 10 * mbit, One: 2 * 10 * mbit}, 1000 * mbit, room{16384 + 9765, 9765}},
		{"a hundred pods of 10 Mbit/s", Load{All: 200 * 10 * mbit, One: 2 * 10 * mbit}, 1000 * mbit, room{16384 + 976562, 992946 / 5}},
		{"more than there is room for", Load{All: 200 * 1000 * mbit, One: 2 * 1000 * mbit}, 0, room{1 << 20, 976562}},
		{"a pod with more than fits", Load{All: 1 << 40, One: 1 << 40}, 0, room{1 << 20, 1<<20 - 1<<13}},
	} {
		if got := roomFor(c.load, c.speed); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
	for _, c := range []struct {
		has  room
		want bool
	}{
		{room{1000, 200}, true}, {room{4000, 800}, true}, {room{999, 200}, false}, {room{1000, 199}, false}, {room{4004, 800}, false}, {room{4000, 804}, false},
	} {
		if got := (room{1000, 200}).fits(c.has); got != c.want {
			t.Errorf("fits(%+v) = %t, want %t", c.has, got, c.want)
		}
	}
}

// Only our queues are changed, and one in which much waits does not shrink.
func TestCramped(t *testing.T) {
	fq := func(handle, parent, limit, flow, waiting uint32) netlink.Qdisc {
		one := netlink.NewFq(netlink.QdiscAttrs{
			LinkIndex: 7, Handle: handle, Parent: parent, Statistics: &netlink.QdiscStatistics{Queue: &netlink.GnetStatsQueue{Qlen: waiting}},
		})
		one.PacketLimit, one.FlowPacketLimit, one.Horizon = limit, flow, horizon
		return one
	}
	ours := netlink.MakeHandle(handle, 0)
	earlier := fq(ours, netlink.HANDLE_ROOT, 1000, 200, 0)
	earlier.(*netlink.Fq).Horizon = 10_000_000
	for _, c := range []struct {
		what string
		q    *queue
		want int
	}{
		{"none", nil, 0},
		{"too little", &queue{root: fq(ours, netlink.HANDLE_ROOT, 100, 20, 0)}, 1},
		{"too little, and much waits", &queue{root: fq(ours, netlink.HANDLE_ROOT, 100, 200, 900)}, 1},
		{"enough, and packets for much later", &queue{root: earlier}, 1},
		{"enough", &queue{root: fq(ours, netlink.HANDLE_ROOT, 2000, 400, 0)}, 0},
		{"far too much", &queue{root: fq(ours, netlink.HANDLE_ROOT, 9000, 400, 100)}, 1},
		{"far too much, and much waits", &queue{root: fq(ours, netlink.HANDLE_ROOT, 9000, 400, 900)}, 0},
		{"somebody else's", &queue{root: fq(netlink.MakeHandle(1, 0), netlink.HANDLE_ROOT, 100, 20, 0)}, 0},
		{"one of two parts", &queue{
			root:  &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{Handle: ours}, QdiscType: kindMq},
			parts: map[uint32]netlink.Qdisc{1: fq(5, ours+1, 100, 20, 0), 2: fq(6, ours+2, 1000, 200, 0)},
		}, 1},
	} {
		list := c.q.cramped(room{1000, 200})
		if len(list) != c.want {
			t.Errorf("%s: changes %v", c.what, list)
		}
		for _, one := range list {
			if fq := one.(*netlink.Fq); fq.PacketLimit != 1000 || fq.FlowPacketLimit != 200 || fq.Horizon != horizon || fq.LinkIndex != 7 || fq.Handle == 0 {
				t.Errorf("%s: changed to %+v", c.what, fq)
			}
		}
	}
}

// The speed is that of the device with the same index, not of another one with the same name.
func TestSpeed(t *testing.T) {
	root := t.TempDir()
	for _, c := range []struct {
		index, speed string
		want         uint64
	}{{"7\n", "1000\n", 125e6}, {"7\n", "-1\n", 0}, {"8\n", "1000\n", 0}, {"7\n", "", 0}} {
		for name, text := range map[string]string{"ifindex": c.index, "speed": c.speed} {
			if err := os.MkdirAll(filepath.Join(root, "eth0"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, "eth0", name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := speedOf(root, &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: 7}}); got != c.want {
			t.Errorf("%+v: speed %d", c, got)
		}
	}
}
