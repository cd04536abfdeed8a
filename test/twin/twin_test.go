package twin

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

var (
	packets = flag.Int("packets", 50_000, "packets that come in through each hook")
	from    = flag.Uint64("from", 1, "first seed")
	only    = flag.Uint64("seed", 0, "run only the episode of this seed")
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// episodeLength is the number of operations applied to one set of tables.
const episodeLength = 2000

// begin returns a run on a node that remembers nothing.
func (w *kernelNode) begin() (*run, error) {
	tables := Tables{
		Frontends: map[Key]Frontend{}, Closed: map[Key]Frontend{}, Services: map[int]*Service{}, Backends: map[int]Backend{}, Ranges: map[int][]netip.Prefix{},
		Pings: map[netip.Addr]bool{}, Addresses: map[netip.Addr]bool{}, Masquerade: map[bool]netip.Addr{}, Routes: map[netip.Addr]Way{},
		MTU: map[int]int{}, MACs: map[int]MAC{}, Hosted: map[netip.AddrPort]int{}, Nodes: nodeAddrs(), Sources: sources(), TunnelPort: w.tunnelPort, NatDevices: map[int]bool{}, Ports: [2]uint16{firstPort, lastPort},
		Pods: podAddrs(), PodMACs: map[int]MAC{}, TunnelEnds: map[netip.Addr]bool{w.role.masks(true): true, w.role.masks(false): true},
	}
	macs := map[uint32][6]byte{}
	for id, d := range w.devices {
		tables.MTU[id], tables.MACs[id] = d.mtu, d.mac
		macs[uint32(d.index)] = d.mac
	}
	for id, d := range w.pods {
		tables.MTU[id], tables.MACs[id], tables.PodMACs[id] = d.mtu, d.mac, d.peer
	}
	for addr, way := range routes() {
		way := w.way(way.Device, way.known())
		tables.Routes[addr] = way
		if changed, ok := w.routes[addr]; ok && changed != way {
			if err := w.setRoute(addr, way); err != nil {
				return nil, err
			}
		}
	}
	clear(w.routes)
	r := &run{kernel: w, node: NewNode(tables, NewPolicies(policyGroups()), openRows, w.now), counts: map[Reason]uint64{}, paths: map[string]int{}}
	for _, m := range []*ebpf.Map{w.maps.Ct, w.maps.CtPending, w.maps.Frags, w.maps.Affinity, w.maps.Svcs, w.maps.SrcRanges} {
		if err := empty(m); err != nil {
			return nil, err
		}
	}
	if err := w.setCluster(&r.node.Tables); err != nil {
		return nil, err
	}
	tally, err := w.tally()
	if err != nil {
		return nil, err
	}
	r.node.waiting.turn = tally.Kept
	if err := errors.Join(zero[bpf.MapsEarlySlot](w.maps.EarlySlots), zero[bpf.MapsEarlyMark](w.maps.EarlyMarks)); err != nil {
		return nil, err
	}
	if err := errors.Join(w.maps.RouteEpoch.Put(uint32(0), maps.RouteEpoch{}), w.maps.RangeEpochs.Put(uint32(0), maps.RangeEpoch{}), w.forgetAsked(),
		w.maps.PacketClients.Put(uint32(0), uint32(0))); err != nil {
		return nil, err
	}
	clear(w.tables.Services)
	clear(w.tables.Backends)
	for _, reason := range w.reasons() {
		n, err := w.counted(reason)
		if err != nil {
			return nil, err
		}
		r.counts[reason] = n
	}
	for addr := range tables.TunnelEnds {
		if err := w.maps.SetTunnelAddr(addr); err != nil {
			return nil, err
		}
	}
	if err := r.forgetPolicies(); err != nil {
		return nil, err
	}
	_, err = w.maps.SetNodeAddrs(map[netip.Addr]maps.NodeAddr{})
	return r, errors.Join(err, w.maps.SetNatDevices(nil), w.maps.SetDeviceMacs(macs), w.maps.SetSnatAddr(netip.IPv4Unspecified()), w.maps.SetSnatAddr(netip.IPv6Unspecified()))
}

// empty deletes every row of a map.
func empty(m *ebpf.Map) error {
	for {
		key, err := m.NextKeyBytes(nil)
		if err != nil || key == nil {
			return err
		}
		if err := m.Delete(key); err != nil {
			return err
		}
	}
}

// zero sets every row of an array to zero.
func zero[T any](m *ebpf.Map) error {
	keys, rows := make([]uint32, m.MaxEntries()), make([]T, m.MaxEntries())
	for i := range keys {
		keys[i] = uint32(i)
	}
	_, err := m.BatchUpdate(keys, rows, nil)
	return err
}

// apply applies an operation to both sides.
func (r *run) apply(o operation) error {
	if o.In != nil || o.Leaving != nil || o.Pod != nil {
		return r.packet(o)
	}
	return r.change(o)
}

// episode runs the operations of a seed, and returns them.
func (w *kernelNode) episode(seed uint64, careful bool) (*run, []operation, error) {
	r, err := w.begin()
	if err != nil {
		return nil, nil, err
	}
	r.careful = careful
	g := newGenerator(seed, r.node)
	list, next := g.setUp(), g.next
	if hasPolicies(seed) {
		list, next = append(list, g.policies.change()), g.nextOrPolicies
	}
	for i := 0; i < episodeLength; i++ {
		if i >= len(list) {
			list = append(list, next())
		}
		if err := r.apply(list[i]); err != nil {
			return r, list[:i+1], err
		}
	}
	return r, list, r.compareAll()
}

// replay applies operations again, and compares everything after each packet.
func (w *kernelNode) replay(list []operation) (*run, int, error) {
	r, err := w.begin()
	if err != nil {
		return nil, 0, err
	}
	r.careful = true
	for i, o := range list {
		if err := r.apply(o); err != nil {
			return r, i, err
		}
	}
	return r, len(list), nil
}

// mostTrials is how many shorter forms of a failure are tried.
const mostTrials = 400

// shorten removes the operations that a failure does not need.
func (w *kernelNode) shorten(list []operation) []operation {
	for size, trials := len(list)/2, 0; size > 0; {
		shorter := false
		for at := 0; at < len(list) && trials < mostTrials; trials++ {
			without := append(slices.Clone(list[:at]), list[min(at+size, len(list)):]...)
			if _, failed, err := w.replay(without); err != nil {
				list, shorter = without[:min(failed+1, len(without))], true
			} else {
				at += size
			}
		}
		if !shorter || size > len(list) {
			size /= 2
		}
		if trials >= mostTrials {
			break
		}
	}
	return list
}

// explain shortens a failure, writes it to a file and returns a description.
func (w *kernelNode) explain(seed uint64, list []operation, err error) error {
	if _, failed, again := w.replay(list); again != nil {
		list = w.shorten(list[:failed+1])
		_, _, err = w.replay(list)
	}
	dir := filepath.Join("..", "..", "_output", "twin")
	name := filepath.Join(dir, fmt.Sprintf("%s-%d.jsonl", w.hook, seed))
	text, encodeErr := encode(list)
	if encodeErr = errors.Join(encodeErr, os.MkdirAll(dir, 0o755)); encodeErr == nil {
		encodeErr = os.WriteFile(name, text, 0o644)
	}
	var story strings.Builder
	for i, o := range list[max(0, len(list)-60):] {
		fmt.Fprintf(&story, "%4d %s\n", i, o)
	}
	return errors.Join(fmt.Errorf("%w\nafter\n%srepeat it with -seed %d (%s); once fixed, keep %s in testdata", err, &story, seed, w.hook, name),
		encodeErr)
}

// each calls test for every hook, in the namespace of a new node.
func each(t *testing.T, test func(t *testing.T, w *kernelNode) error) {
	t.Helper()
	for _, hook := range []string{"tc", "xdp"} {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			w := newKernelNode(t, hook)
			if err := w.netns.Do(func() error { return test(t, w) }); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Programs and model agree on every packet.
func TestTwin(t *testing.T) {
	each(t, func(t *testing.T, w *kernelNode) error {
		paths := map[string]int{}
		began, total := time.Now(), 0
		for seed := *from; total < *packets; seed++ {
			if *only != 0 {
				seed, total = *only, *packets
			}
			r, list, err := w.episode(seed, *only != 0)
			if err != nil && len(list) == 0 {
				return err
			}
			if err != nil {
				return w.explain(seed, list, err)
			}
			total += r.packets
			for path, n := range r.paths {
				paths[path] += n
			}
		}
		t.Logf("%d packets from seed %d on, in %s", total, *from, time.Since(began).Round(time.Second))
		if *only == 0 {
			requireCoverage(t, w.hook, classes(), paths, total, fewest)
		}
		return nil
	})
}

// The corpus keeps sequences that once found a bug, or that are rare.
func TestCorpus(t *testing.T) {
	names, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(names) == 0 {
		t.Fatalf("no corpus found: %v", err)
	}
	each(t, func(t *testing.T, w *kernelNode) error {
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			list, err := decode(text)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if _, failed, err := w.replay(list); err != nil {
				return fmt.Errorf("%s: line %d: %w", name, failed+1, err)
			}
		}
		return nil
	})
}
