package podnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/test/rig"
)

// forwarding says how a node's programs carry the packets of pods.
type forwarding struct {
	BPFFS, Cgroup string
	Bypass        bool
	Native        []netip.Prefix
	Tunnel        string // name of the device that leads to the pods of other nodes; "" if there is none
}

// open loads and attaches the programs, with eth0 as the device to the outside. Packets of pods
// with a rate that stay on the node wait at the device with the index pair; if it is 0, no pod has
// a rate.
func (c *forwarding) open(log *slog.Logger, pair int, chained bool) (podnet.Programs, error) {
	if c == nil {
		return nil, nil
	}
	filter, err := devices.ParseFilter("eth0")
	reach, reachErr := datapath.ParseNodePortAddrs("primary")
	if err := errors.Join(err, reachErr); err != nil {
		return nil, err
	}
	packets := &datapath.Packets{
		Devices: filter, XDP: devices.Off, NodePorts: reach, SnatPorts: model.PortRange{First: 1024, Last: 29999},
		Node: true, AcceptDirect: true, Pair: pair, PairEnd: queues.FarName,
	}
	if chained {
		packets.Chained = true
	} else {
		packets.Pods, packets.Bypass, packets.Masquerade, packets.Tunnel = true, c.Bypass, true, c.Tunnel
	}
	d, err := datapath.Open(datapath.Config{BPFFS: c.BPFFS, CgroupRoot: c.Cgroup, Log: log, Packets: packets})
	if err != nil {
		return nil, err
	}
	if !d.Adopted() {
		if err := d.Create(maps.Sizes{}); err != nil {
			return nil, err
		}
	}
	if pair == 0 { // as an agent without rates does
		if err := d.EndRates(queues.Drain); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(d.Attach(), d.SetNative(c.Native)); err != nil {
		return nil, err
	}
	looked, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- d.Watch(context.Background(), nil, func(*datapath.Local) {
			select {
			case looked <- struct{}{}:
			default:
			}
		})
	}()
	select {
	case <-looked:
		return d, nil
	case err := <-ended:
		return nil, fmt.Errorf("watch: %w", err)
	}
}

// oneNode is a node with two pods, and a host outside that has no route to pods.
type oneNode struct {
	*node
	outside *rig.Netns
	pods    []*pod
}

// Addresses, by whether they are IPv4: of the host outside, of the node toward it, and the one
// from which the node speaks to pods.
var (
	outsiders        = map[bool]netip.Addr{true: netip.MustParseAddr("198.51.100.7"), false: netip.MustParseAddr("2001:db8:1::7")}
	nodeOutsideAddrs = map[bool]netip.Addr{true: netip.MustParseAddr("198.51.100.1"), false: netip.MustParseAddr("2001:db8:1::1")}
	nodeAddrs        = map[bool]netip.Addr{true: netip.MustParseAddr("192.0.2.1"), false: netip.MustParseAddr("2001:db8::1")}
)

func newOneNode(t *testing.T, bypass bool) *oneNode {
	t.Helper()
	return newOneNodeOf(t, bypass, func(*agentConfig) {})
}

func newOneNodeOf(t *testing.T, bypass bool, prepare func(*agentConfig)) *oneNode {
	t.Helper()
	return newOneNodeLinked(t, bypass, func(in, outside *rig.Netns) { rig.Veth(t, in, "eth0", outside, "eth0") }, prepare)
}

// newOneNodeLinked returns a node with two pods; connect makes the link between the eth0 of the node and that of the
// host outside.
func newOneNodeLinked(t *testing.T, bypass bool, connect func(in, outside *rig.Netns), prepare func(*agentConfig)) *oneNode {
	t.Helper()
	w := &oneNode{}
	w.node = newNodeOf(t, func(n *node) {
		rig.Address(t, n.ns, "lo", "192.0.2.1/32", "2001:db8::1/128")
		w.outside = rig.NewNetns(t, "outside")
		connect(n.ns, w.outside)
		rig.Address(t, n.ns, "eth0", "198.51.100.1/24", "2001:db8:1::1/64")
		rig.Address(t, w.outside, "eth0", "198.51.100.7/24", "2001:db8:1::7/64")
		n.Forwarding = &forwarding{BPFFS: rig.BPFFS(t), Cgroup: rig.NewCgroup(t).Path(), Bypass: bypass, Native: n.CIDRs}
		prepare(&n.agentConfig)
	}, "10.1.0.0/24", "fd00:1::/64")
	n := w.node
	for _, id := range []string{"a", "b"} {
		p := n.pod(id)
		n.mustAdd(p)
		listenIn(t, p.Netns)
		w.pods = append(w.pods, p)
	}
	listenIn(t, w.outside)
	listenIn(t, n.ns)
	return w
}

// forwarded returns how many packets the node's own stack has forwarded.
func (w *oneNode) forwarded(is4 bool) string {
	w.t.Helper()
	path, key := "/proc/net/snmp6", "Ip6OutForwDatagrams"
	if is4 {
		path, key = "/proc/net/snmp", "Ip:"
	}
	var found string
	w.must(w.ns.Do(func() error {
		content, err := os.ReadFile("/proc/thread-self/net/" + strings.TrimPrefix(path, "/proc/net/"))
		for line := range strings.Lines(string(content)) {
			fields := strings.Fields(line)
			switch {
			case is4 && fields[0] == key && len(fields) > 6 && fields[1] != "Forwarding":
				found = fields[6]
			case !is4 && fields[0] == key:
				found = fields[1]
			}
		}
		return err
	}))
	return found
}

// TestForwarding checks that pods, the node and the host outside reach each other by every protocol
// and see the right source address, and that packets bypass the stack if they should.
func TestForwarding(t *testing.T) {
	for _, bypass := range []bool{true, false} {
		t.Run(map[bool]string{true: "past the stack", false: "by the stack"}[bypass], func(t *testing.T) {
			w := newOneNode(t, bypass)
			for _, is4 := range []bool{true, false} {
				before := w.forwarded(is4)
				w.talk(t, is4)
				if after := w.forwarded(is4); (after == before) != bypass {
					t.Errorf("IPv4 %t: the stack has forwarded %s packets, before %s", is4, after, before)
				}
			}
		})
	}
}

// talk has pods, the node and the host outside ask each other.
func (w *oneNode) talk(t *testing.T, is4 bool) {
	t.Helper()
	a, b := w.pods[0], w.pods[1]
	for _, protocol := range []string{"tcp", "udp", "icmp"} {
		for _, way := range []struct {
			what     string
			from     *rig.Netns
			to, seen netip.Addr
		}{
			{"pod to pod", a.Netns, b.addr[is4], a.addr[is4]},
			{"pod to outside", a.Netns, outsiders[is4], nodeOutsideAddrs[is4]},
			{"pod to node", b.Netns, nodeAddrs[is4], b.addr[is4]},
			{"node to pod", w.ns, b.addr[is4], netip.Addr{}},
		} {
			seen := talk(t, way.from, protocol, way.to)
			want := way.seen.String()
			if protocol == "icmp" {
				want = way.to.String()
			}
			if seen != want && (way.seen.IsValid() || protocol == "icmp") {
				t.Errorf("%s by %s, IPv4 %t: came from %s, want %s", way.what, protocol, is4, seen, want)
			}
		}
	}
}

// TestForwardingFromOutside checks that pods answer a host outside that has a route to them from their
// own addresses.
func TestForwardingFromOutside(t *testing.T) {
	for _, bypass := range []bool{true, false} {
		w := newOneNode(t, bypass)
		rig.Route(t, w.outside, "10.1.0.0/24", "198.51.100.1")
		rig.Route(t, w.outside, "fd00:1::/64", "2001:db8:1::1")
		for is4, addr := range w.pods[0].addr {
			for _, protocol := range []string{"tcp", "udp", "icmp"} {
				seen, want := talk(t, w.outside, protocol, addr), outsiders[is4].String()
				if protocol == "icmp" {
					want = addr.String()
				}
				if seen != want {
					t.Errorf("%s, IPv4 %t: came from %s, want %s", protocol, is4, seen, want)
				}
			}
		}
	}
}

// TestForwardingRestart checks that pods keep their connectivity without the agent and with the next
// one, that its programs are attached to both pods' devices, and that a pod added after these are
// gone works.
func TestForwardingRestart(t *testing.T) {
	w := newOneNode(t, true)
	w.kill()
	w.talk(t, true)
	w.start()
	w.talk(t, false)
	if have := w.attached(t); have != 2 {
		t.Fatalf("programs at both sides of %d devices, want those of two pods", have)
	}
	for _, p := range w.pods {
		w.must(w.del(p))
	}
	p := w.pod("c")
	w.mustAdd(p)
	w.pods[0] = p
	listenIn(t, p.Netns)
	if seen := talk(t, p.Netns, "tcp", outsiders[true]); seen != nodeOutsideAddrs[true].String() {
		t.Errorf("a pod of later came from %s", seen)
	}
}

// TestForwardingDetached checks that programs that somebody removes from a pod's device come back
// although nothing tells the agent, also when nothing else happens to the node's devices, as in the
// second round. The agent looks every eight seconds; a busy machine may take twice that.
func TestForwardingDetached(t *testing.T) {
	t.Parallel() // it mostly waits
	w := newOneNode(t, true)
	for range 2 {
		w.must(w.ns.Do(func() error {
			link, err := netlink.LinkByName(w.pods[0].device())
			if err != nil {
				return err
			}
			return netlink.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
			}})
		}))
		gone := time.Now()
		for w.attached(t) != 2 {
			if time.Since(gone) > 20*time.Second {
				t.Fatal("the programs do not come back")
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Logf("back after %v", time.Since(gone).Round(100*time.Millisecond))
	}
	w.talk(t, false)
}

// attached returns how many devices of the node have the programs for pods.
func (w *oneNode) attached(t *testing.T) (devices int) {
	t.Helper()
	w.must(w.ns.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, link := range links {
			var running []string
			for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
				// It is an error if there is no qdisc for them, and then there are none.
				filters, _ := netlink.FilterList(link, parent)
				for _, filter := range filters {
					if ours, ok := filter.(*netlink.BpfFilter); ok {
						running = append(running, ours.Name)
					}
				}
			}
			if slices.Equal(running, []string{"fairlead-tc_from_pod", "fairlead-tc_to_pod"}) {
				devices++
			}
		}
		return nil
	}))
	return devices
}

// TestForwardingSpoof checks that packets that a pod sends from another pod's address are dropped and
// counted.
func TestForwardingSpoof(t *testing.T) {
	newOneNode(t, true).steal(t)
}

// steal has a pod send from another pod's address.
func (w *oneNode) steal(t *testing.T) {
	t.Helper()
	thief, victim := w.pods[0], w.pods[1]
	m, err := maps.Open(datapath.MapsDir(w.Forwarding.BPFFS), true)
	w.must(err)
	defer m.Close()
	before := w.flows(m)
	w.must(thief.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(victim.addr[true].String() + "/32")
		if err == nil {
			err = netlink.AddrAdd(link, addr)
		}
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: victim.addr[true].As4()}); err != nil {
			return err
		}
		return unix.Sendto(fd, []byte("I am another"), 0, &unix.SockaddrInet4{Addr: outsiders[true].As4(), Port: 7})
	}))
	list, err := reasons.ReadCounters(m.Counters)
	w.must(err)
	at := slices.IndexFunc(list, func(c reasons.Counter) bool { return c.Hook == "pod" && c.Reason == "spoofed" })
	if at < 0 || list[at].Packets != 1 {
		text, _ := json.Marshal(list)
		t.Errorf("counted %s", text)
	}
	if after := w.flows(m); after != before {
		t.Errorf("%d flows were made", after-before)
	}
}

func (w *oneNode) flows(m *maps.Maps) (rows int) {
	var key maps.Flow
	var row maps.FlowRow
	list := m.CtPending.Iterate()
	for list.Next(&key, &row) {
		rows++
	}
	if err := list.Err(); err != nil {
		w.t.Fatal(err)
	}
	return rows
}
