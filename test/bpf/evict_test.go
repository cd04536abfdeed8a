package bpf

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// shrink replaces a map by one with this many rows, and loads the programs over it.
func (w *bareNode) shrink(t *testing.T, name string, rows uint32) {
	t.Helper()
	specs, err := bpf.LoadMaps()
	if err != nil {
		t.Fatal(err)
	}
	specs.Maps[name].MaxEntries = rows
	small, err := ebpf.NewMap(specs.Maps[name])
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]**ebpf.Map{"ct_pending": &w.maps.CtPending, "affinity": &w.maps.Affinity, "frags": &w.maps.Frags}[name]
	(*at).Close()
	w.loaded.spoiled = true
	*at = small
	w.reload(t, w.hook)
}

// lruCounts returns the counts of an LRU map, and how many rows were made in it and not deleted.
func (w *bareNode) lruCounts(t *testing.T, name string) (c maps.LruCounts, kept uint64) {
	t.Helper()
	m := map[string]*ebpf.Map{"ct_pending": w.maps.CtPending, "affinity": w.maps.Affinity, "frags": w.maps.Frags}[name]
	c, err := maps.TakeLruCounts(w.maps.LruStats, m, name)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	list := m.Iterate()
	for list.Next(key, value) {
		rows++
	}
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	if c.Rows != rows {
		t.Errorf("%s: the count has %d rows, there are %d", name, c.Rows, rows)
	}
	return c, c.LruStats.Made - c.LruStats.Deleted
}

// nth returns another client of a family for every n.
func (f family) nth(n int) netip.Addr {
	b := netip.MustParseAddr(strings.Trim(f.client, "[]")).AsSlice()
	b[len(b)-2], b[len(b)-3] = byte(n), byte(n>>8)
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// A flood of first packets evicts only rows of its own kind, and every evicted row is counted.
func TestFloodIsCounted(t *testing.T) {
	const room, flood = 128, 300
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.shrink(t, "ct_pending", room)
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", false)
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", true)
		w.talk(t, f, f.client+":4000", f.pod+":53", 2)
		if c, kept := w.lruCounts(t, "ct_pending"); c.LruStats != (maps.LruStats{Made: 2, Deleted: 2}) || kept != 0 || c.Evicted != 0 {
			t.Fatalf("after a flow was established: %+v", c)
		}
		before := w.dump(t)
		for n := range flood {
			from := netip.AddrPortFrom(f.nth(n), 4000).String()
			if verdict, _ := w.run(t, w.in, packet{from: from, to: f.node + ":30080", proto: tcp, flags: syn}.bytes()); verdict != "pass" {
				t.Fatalf("first packet %d: %s", n, verdict)
			}
		}
		c, kept := w.lruCounts(t, "ct_pending")
		if c.LruStats.Made != 2+2*flood || c.LruStats.Deleted != 2 {
			t.Errorf("counted %+v for %d first packets with two rows each", c.LruStats, flood)
		}
		if want := kept - uint64(c.Rows); c.Evicted != want || c.Rows > room || want < 2*flood-room {
			t.Errorf("%d rows are left and %d were evicted, want %d", c.Rows, c.Evicted, want)
		}
		after := w.dump(t)
		for key, row := range before { // only established flows
			if diff := cmp.Diff(row, after[key]); diff != "" {
				t.Errorf("the flood has changed an established flow (-before +after):\n%s", diff)
			}
		}
		w.doom(t, maps.DoomFlushed, &maps.FlowLimits{})
		if left, _ := w.lruCounts(t, "ct_pending"); left.Evicted != c.Evicted || left.LruStats.Deleted == 2 {
			t.Errorf("forgetting flows changed the number of evictions from %d to %d (%+v)", c.Evicted, left.Evicted, left.LruStats)
		}
	})
}

// Rows that are deleted count as evicted by nobody: those of a client that resets, and of one that
// is no longer in a source range.
func TestNothingIsEvicted(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", true)
		for n := range 50 {
			from := netip.AddrPortFrom(f.nth(n), 4000).String()
			for _, flags := range []byte{syn, syn, rst} {
				w.run(t, w.in, packet{from: from, to: f.node + ":30080", proto: tcp, flags: flags}.bytes())
			}
		}
		if c, kept := w.lruCounts(t, "ct_pending"); kept != 0 || c.Evicted != 0 || c.LruStats.Made != 100 {
			t.Errorf("counted %+v, but no row was evicted", c)
		}
	})
}

// With more clients with affinity than rows, evicted ones are counted, and the others keep their
// backend. A client whose affinity has lapsed still has its row.
func TestClientsArePushedOut(t *testing.T) {
	const room, clients = 128, 300
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.shrink(t, "affinity", room)
		index := w.addAffinity(t, f)
		for n := range clients {
			w.affine(t, f, f.nth(n), 4000)
		}
		c, kept := w.lruCounts(t, "affinity")
		if c.LruStats.Made != clients || c.LruStats.Deleted != 0 || c.Rows > room || c.Evicted != kept-uint64(c.Rows) || c.Evicted < clients-room {
			t.Fatalf("of %d clients: %+v", clients, c)
		}
		key := bpf.MapsAffinityKey{Client: maps.AddrOf(f.nth(clients - 1)), Service: index}
		var known bpf.MapsAffinity
		if err := w.maps.Affinity.Lookup(key, &known); err != nil {
			t.Fatal(err)
		}
		known.Last -= 61e9
		if err := w.maps.Affinity.Put(key, known); err != nil {
			t.Fatal(err)
		}
		w.affine(t, f, f.nth(clients-1), 4001)
		if c, _ := w.lruCounts(t, "affinity"); c.LruStats.Made != clients {
			t.Errorf("a client that was known counts as another: %+v", c)
		}
	})
}

// More fragmented datagrams than there are rows.
func TestDatagramsArePushedOut(t *testing.T) {
	const room, datagrams = 128, 300
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.shrink(t, "frags", room)
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		for n := range uint32(datagrams) {
			first := split(udpTo(f.client+":4000", f.node+":30053", 1600), 800, n)[0]
			w.run(t, w.in, first.bytes())
			w.run(t, w.in, first.bytes()) // twice, as a network may deliver it
		}
		c, kept := w.lruCounts(t, "frags")
		if c.LruStats.Made < datagrams || c.Rows > room || c.Evicted != kept-uint64(c.Rows) || c.Evicted < datagrams-room {
			t.Errorf("of %d datagrams: %+v", datagrams, c)
		}
	})
}

// While flows come and go, a lruCounts reports no evictions if none happened: here there is room for
// all flows.
func TestLruCountsWhileFlowsComeAndGo(t *testing.T) {
	rig.Root(t)
	w, f := newBareNode(t, hooks()[0]), families()["v4"]
	w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", true)
	done := make(chan error)
	go func() {
		done <- w.do(func() error {
			for n := range 5000 {
				from := netip.AddrPortFrom(f.nth(n), 4000).String()
				for _, flags := range []byte{syn, rst}[:1+n%2] {
					frame := packet{from: from, to: f.node + ":30080", proto: tcp, flags: flags}.bytes()
					if _, err := w.programs[w.in].Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64)}); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}()
	looks := 0
	for going := true; going; looks++ {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			going = false
		default:
		}
		c, err := maps.TakeLruCounts(w.maps.LruStats, w.maps.CtPending, "ct_pending")
		if err != nil {
			t.Fatal(err)
		}
		if c.Evicted != 0 {
			t.Errorf("count %d reports %d evictions: %+v", looks, c.Evicted, c)
		}
	}
	if c, kept := w.lruCounts(t, "ct_pending"); kept != uint64(c.Rows) || c.LruStats.Deleted == 0 || looks < 3 {
		t.Errorf("at rest there are %d rows but %d were kept, after %d censuses: %+v", c.Rows, kept, looks, c)
	}
}
