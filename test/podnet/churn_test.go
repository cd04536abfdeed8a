package podnet

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// cycles is how often a pod comes and goes; make soak has more of them.
var cycles = flag.Int("cycles", 500, "how often a pod comes and goes in TestChurn")

// Pods that come and go, 32 at a time, leave nothing, and no two have an address at a time.
func TestChurn(t *testing.T) {
	const workers = 32
	n := newNode(t, "10.1.0.0/16", "fd00:1::/64")
	var (
		mu      sync.Mutex
		holders = map[netip.Addr]string{}
		took    []time.Duration
	)
	hold := func(p *pod) {
		mu.Lock()
		defer mu.Unlock()
		for _, addr := range p.addr {
			if other := holders[addr]; other != "" {
				t.Errorf("%s and %s both have %s", other, p.id, addr)
			}
			holders[addr] = p.id
		}
	}
	letGo := func(p *pod) {
		mu.Lock()
		defer mu.Unlock()
		for _, addr := range p.addr {
			delete(holders, addr)
		}
	}
	spaces := make([]*rig.Netns, workers)
	for i := range spaces {
		spaces[i] = rig.NewNetns(t, fmt.Sprintf("pod %d", i))
	}
	began := time.Now()
	var running sync.WaitGroup
	for worker := range workers {
		running.Go(func() {
			for i := worker; i < *cycles; i += workers {
				p := &pod{Netns: spaces[worker], id: fmt.Sprintf("c%d", i), addr: map[bool]netip.Addr{}}
				at := time.Now()
				if _, err := n.add(p); err != nil {
					t.Errorf("ADD %s: %v", p.id, err)
					return
				}
				mu.Lock()
				took = append(took, time.Since(at))
				mu.Unlock()
				hold(p)
				letGo(p) // before DEL, which makes it another's
				if err := n.del(p); err != nil {
					t.Errorf("DEL %s: %v", p.id, err)
					return
				}
			}
		})
	}
	running.Wait()
	n.nothingLeft()
	n.restart()
	n.nothingLeft()
	slices.Sort(took)
	if len(took) == *cycles {
		t.Logf("%d ADD and DEL in %.1f s, %d at a time: ADD p50 %v, p99 %v", *cycles, time.Since(began).Seconds(), workers,
			took[len(took)/2].Round(time.Millisecond), took[len(took)*99/100].Round(time.Millisecond))
	}
}

// What ADD costs beside the same device made with nothing else. It says so, and judges only what no machine excuses.
func TestCost(t *testing.T) {
	const rounds = 30
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	plugin := filepath.Join(plugins(t), "fairlead-cni")
	var starts, adds, hands []time.Duration
	p := n.pod("a")
	for i := range rounds {
		version := exec.Command(plugin)
		version.Env = []string{"CNI_COMMAND=VERSION", "CNI_PATH=/"}
		at := time.Now()
		n.must(version.Run())
		starts = append(starts, time.Since(at))

		p.id = fmt.Sprintf("a%d", i)
		at = time.Now()
		n.mustAdd(p)
		adds = append(adds, time.Since(at))
		n.must(n.del(p))

		at = time.Now()
		n.must(n.ns.Do(func() error { return byHand(p) }))
		hands = append(hands, time.Since(at))
		n.must(n.ns.Do(func() error {
			link, err := netlink.LinkByName("hand0")
			if err != nil {
				return err
			}
			return netlink.LinkDel(link)
		}))
	}
	median := func(list []time.Duration) time.Duration { slices.Sort(list); return list[len(list)/2] }
	add, hand := median(adds), median(hands)
	t.Logf("the plugin starts and ends in %v; ADD takes %v, and the same by hand %v: %.2f times as long", median(starts), add, hand, float64(add)/float64(hand))
	info, err := os.Stat(plugin)
	n.must(err)
	t.Logf("the plugin has %d KiB", info.Size()>>10)
}

// byHand makes what ADD makes, with no process, no agent and no record.
func byHand(p *pod) error {
	ns := netns.NsHandle(p.FD())
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "hand0", 1500
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns), PeerTxQLen: -1}
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	inside, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer inside.Close()
	pod, err := inside.LinkByName("eth0")
	if err != nil {
		return err
	}
	for _, side := range []struct {
		handle *netlink.Handle
		link   netlink.Link
	}{{inside, pod}, {nil, veth}} {
		if side.handle == nil {
			if err := netlink.LinkSetUp(side.link); err != nil {
				return err
			}
			continue
		}
		for _, text := range []string{"10.1.0.200/32", "fd00:1::200/128"} {
			addr, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			if err := side.handle.AddrAdd(side.link, addr); err != nil {
				return err
			}
		}
		if err := side.handle.LinkSetUp(side.link); err != nil {
			return err
		}
	}
	for _, text := range []string{"10.1.0.200/32", "fd00:1::200/128"} {
		dst, err := netlink.ParseIPNet(text)
		if err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: veth.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}); err != nil {
			return err
		}
	}
	return nil
}
