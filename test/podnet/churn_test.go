package podnet

import (
	"flag"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/test/rig"
)

// cycles is how often a pod comes and goes; make soak uses more.
var cycles = flag.Int("cycles", 500, "how often a pod comes and goes in TestChurn")

// TestChurn checks that pods that come and go, 32 at a time, leave nothing, and that no two have an
// address at the same time.
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
				letGo(p) // before DEL, after which another pod may get its addresses
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

// TestCost logs what ADD costs compared with a program that makes the same by hand. Both are
// processes, because starting one has a cost too. It judges nothing: how long things take depends
// on the machine and its other users.
func TestCost(t *testing.T) {
	const rounds = 30
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	path, hand := filepath.Join(plugin.in(t), "fairlead-cni"), filepath.Join(plugin.in(t), "byhand")
	var starts, adds, hands, works []time.Duration
	p := n.pod("a")
	for i := range rounds {
		version := exec.Command(path)
		version.Env = []string{"CNI_COMMAND=VERSION", "CNI_PATH=/"}
		at := time.Now()
		n.must(version.Run())
		starts = append(starts, time.Since(at))

		p.id = fmt.Sprintf("a%d", i)
		at = time.Now()
		n.mustAdd(p)
		adds = append(adds, time.Since(at))
		n.must(n.del(p))

		n.must(n.ns.Do(func() error {
			at := time.Now()
			out, err := exec.Command(hand, p.Path()).Output()
			hands = append(hands, time.Since(at))
			if err != nil {
				return err
			}
			work, err := strconv.Atoi(strings.TrimSpace(string(out)))
			works = append(works, time.Duration(work))
			if err != nil {
				return err
			}
			link, err := netlink.LinkByName("hand0")
			if err != nil {
				return err
			}
			return netlink.LinkDel(link)
		}))
	}
	median := func(list []time.Duration) time.Duration { slices.Sort(list); return list[len(list)/2] }
	add, byHand, work := median(adds), median(hands), median(works)
	t.Logf("with files in %s ADD takes %v; a program that makes the same by hand %v, %.2f times less, of which the work is %v, %.2f times less; "+
		"the plugin starts and ends in %v", n.Dir, add, byHand, float64(add)/float64(byHand), work, float64(add)/float64(work), median(starts))
}
