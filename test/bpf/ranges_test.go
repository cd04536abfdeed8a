package bpf

import (
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// guard sets the source ranges of the last added service.
func (w *bareNode) guard(t *testing.T, prefixes ...string) {
	t.Helper()
	table := maps.NewRangeTable(w.maps.SrcRanges)
	var have, want []maps.Range
	if err := table.Each(func(r maps.Range) { have = append(have, r) }); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range prefixes {
		want = append(want, maps.Range{Service: w.services, Prefix: netip.MustParsePrefix(prefix)})
	}
	if err := table.Delete(have); err != nil {
		t.Fatal(err)
	}
	if err := table.Insert(want); err != nil {
		t.Fatal(err)
	}
	row := &w.tables.Services[w.services]
	if row.Flags &^= maps.SourceRanges; len(prefixes) > 0 {
		row.Flags |= maps.SourceRanges
	}
}

// nextTick makes every established flow look as if it was last seen one tick earlier.
func (w *bareNode) nextTick(t *testing.T) {
	t.Helper()
	var key bpf.MapsFlow
	var row bpf.MapsCtEntry
	rows := map[bpf.MapsFlow]bpf.MapsCtEntry{}
	list := w.maps.Ct.Iterate()
	for list.Next(&key, &row) {
		rows[key] = row
	}
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	for key, row := range rows {
		row.Seen--
		if err := w.maps.Ct.Put(key, row); err != nil {
			t.Fatal(err)
		}
	}
}

// guarded holds the addresses of a story about source ranges in one family.
type guarded struct{ vip, around, elsewhere string }

func guardedIn(f family) guarded {
	if f.any == "0.0.0.0" {
		return guarded{"203.0.113.5", "198.51.100.0/24", "198.51.101.0/24"}
	}
	return guarded{"[2001:db8:2::5]", "2001:db8:1::/48", "2001:db8:4::/48"}
}

// A client in no source range reaches no address of a load balancer, but every other kind of
// frontend.
func TestSourceRanges(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		g := guardedIn(f)
		w.service(t, g.vip+":53", udp, maps.LoadBalancer, f.pod+":53", false)
		key := maps.KeyOf(netip.MustParseAddrPort(f.any+":30053").Addr(), 30053, udp)
		if err := w.tables.Svcs.Update(key, maps.Svc{Service: w.services, Kind: maps.NodePort}); err != nil {
			t.Fatal(err)
		}
		dropped := func(name, from string) {
			t.Helper()
			w.step(t, step{name: name, in: packet{from: from, to: g.vip + ":53", proto: udp}, drop: "source-range"})
		}
		passes := func(name, from, to string) {
			t.Helper()
			if verdict, _ := w.run(t, w.in, packet{from: from, to: to, proto: udp}.bytes()); verdict != "pass" {
				t.Errorf("%s: %s; counted: %v", name, verdict, w.reasons(t))
			}
		}
		passes("no ranges", f.client+":4000", g.vip+":53")
		w.guard(t, g.elsewhere)
		dropped("a flow that is half open", f.client+":4000")
		if open, half := w.rows(t); open+half != 0 {
			t.Errorf("%d rows are open and %d half, want none", open, half)
		}
		dropped("a new flow", f.client+":4001")
		passes("a node port", f.client+":4002", f.node+":30053")
		w.guard(t, g.elsewhere, g.around)
		passes("in one of the ranges", f.client+":4003", g.vip+":53")
		w.guard(t)
		passes("no ranges any more", f.client+":4001", g.vip+":53")
	})
}

// established makes a UDP flow to a load balancer's address and establishes it if possible, and
// returns its packets.
func (w *bareNode) established(t *testing.T, f family, local bool) (request, answer packet) {
	t.Helper()
	vip := guardedIn(f).vip + ":53"
	request = packet{from: f.client + ":4000", to: vip, proto: udp}
	program, to := w.out, f.client+":4000"
	_, out := w.run(t, w.in, request.bytes())
	if !local {
		program, to = w.in, f.snat+":"+portOf(out, f)
	}
	answer = packet{from: f.pod + ":53", to: to, proto: udp}
	for _, run := range []struct {
		program string
		packet
	}{{program, answer}, {w.in, request}} {
		if verdict, _ := w.run(t, run.program, run.bytes()); verdict != "pass" {
			t.Fatalf("%s: %v; counted: %v", verdict, run.packet, w.reasons(t))
		}
	}
	if open, half := w.rows(t); open != 2 || half != 0 {
		t.Fatalf("%d rows are open and %d half, want 2 and 0", open, half)
	}
	return request, answer
}

// A flow whose client is no longer in a range ends within a tick, whichever side sends first.
func TestSourceRangesCutFlows(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		g := guardedIn(f)
		for _, c := range []struct {
			name           string
			local, answers bool
		}{{"remote, the client", false, false}, {"remote, the backend", false, true}, {"local, the client", true, false}, {"local, the backend", true, true}} {
			if c.local && w.out == "" {
				continue
			}
			w.service(t, g.vip+":53", udp, maps.LoadBalancer, f.pod+":53", c.local)
			w.guard(t, g.around)
			request, answer := w.established(t, f, c.local)
			w.nextTick(t)
			if verdict, _ := w.run(t, w.in, request.bytes()); verdict != "pass" {
				t.Fatalf("%s: still in a range: %s, %v", c.name, verdict, w.reasons(t))
			}
			w.guard(t, g.elsewhere)
			w.nextTick(t)
			last := step{name: c.name, in: request, drop: "source-range"}
			if c.answers {
				last.in, last.leaving = answer, c.local
			}
			w.step(t, last)
			if open, half := w.rows(t); open+half != 0 {
				t.Errorf("%s: %d rows are open and %d half, want none", c.name, open, half)
			}
		}
	})
}

// affinityBackends is how many backends the service of addAffinity has.
const affinityBackends = 8

// addAffinity adds a service with session affinity, and returns its index.
func (w *bareNode) addAffinity(t *testing.T, f family) uint32 {
	t.Helper()
	w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8000", true)
	index := w.services
	for i := uint32(0); i < affinityBackends; i++ {
		at := netip.MustParseAddrPort(f.pod + ":1")
		backend := maps.BackendOf(at.Addr(), uint16(8000+i), tcp)
		backend.Owner, backend.Flags = maps.MakeOwner(index, 1), maps.BackendLocal
		w.tables.Backends[100+i], w.tables.Slots[100+i] = backend, maps.MakeSlot(100+i, index, 4)
	}
	row := &w.tables.Services[index]
	row.Words[0], row.AffinitySeconds = uint64(maps.MakeWord(100, affinityBackends, 4)), 60
	return index
}

// affine returns the backend's port that a client's first packet goes to.
func (w *bareNode) affine(t *testing.T, f family, client netip.Addr, port uint16) string {
	t.Helper()
	from := netip.AddrPortFrom(client, port)
	_, out := w.run(t, w.in, packet{from: from.String(), to: f.node + ":30080", proto: tcp, flags: syn}.bytes())
	if f.any == "0.0.0.0" {
		return portOfAt(out, 14+20+2)
	}
	return portOfAt(out, 14+40+2)
}

// A client whose affinity has lapsed gets any backend, and keeps it.
func TestAffinityLapses(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		index := w.addAffinity(t, f)
		client := netip.MustParseAddrPort(f.client + ":1").Addr()
		key := bpf.MapsAffinityKey{Client: maps.AddrOf(client), Service: index}
		seen := map[string]bool{}
		for port := uint16(4000); port < 4100; port += 4 {
			first := w.affine(t, f, client, port)
			for next := port + 1; next < port+4; next++ {
				if again := w.affine(t, f, client, next); again != first {
					t.Fatalf("%s has %s and gets %s", client, first, again)
				}
			}
			seen[first] = true
			var known bpf.MapsAffinity
			if err := w.maps.Affinity.Lookup(key, &known); err != nil {
				t.Fatal(err)
			}
			known.Last -= 61e9
			if err := w.maps.Affinity.Put(key, known); err != nil {
				t.Fatal(err)
			}
		}
		if len(seen) < affinityBackends/2 {
			t.Errorf("in 25 times a client got %d of %d backends", len(seen), affinityBackends)
		}
	})
}

// With session affinity only the client's address decides, on any node, from any port of the
// client, with any algorithm.
func TestAffinityByAddress(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		index := w.addAffinity(t, f)
		row := &w.tables.Services[index]
		chosen := func(client netip.Addr, port uint16) string {
			t.Helper()
			backend := w.affine(t, f, client, port)
			// Another node would know nothing of the client.
			if err := w.maps.Affinity.Delete(bpf.MapsAffinityKey{Client: maps.AddrOf(client), Service: index}); err != nil {
				t.Fatal(err)
			}
			return backend
		}
		for algorithm := range uint8(4) {
			row.Algorithm = algorithm
			seen, client := map[string]bool{}, netip.MustParseAddrPort(f.client+":1").Addr()
			for range 24 {
				base := 4000 + 1000*uint16(algorithm) // none of these flows exists yet
				first := chosen(client, base)
				for port := base + 1; port < base+8; port++ {
					if next := chosen(client, port); next != first {
						t.Fatalf("algorithm %d: %s got backend %s and then %s", algorithm, client, first, next)
					}
				}
				seen[first] = true
				client = client.Next()
			}
			if len(seen) < affinityBackends/2 {
				t.Errorf("algorithm %d: 24 clients share %d of %d backends", algorithm, len(seen), affinityBackends)
			}
		}
	})
}
