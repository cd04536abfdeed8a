package bpf

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// agreed is a Service that both nodes hear of, with its slices.
type agreed struct {
	*model.Service
	slices []*model.Slice
}

// agreedServices returns services with every algorithm that does not depend on counting, with and
// without affinity, weights and direct server return.
func agreedServices() []agreed {
	var list []agreed
	ports := []model.Port{
		{Name: "t", Port: 80, Protocol: model.TCP}, {Name: "u", Port: 81, Protocol: model.UDP}, {Name: "s", Port: 82, Protocol: model.SCTP},
	}
	for i := range 12 {
		name := fmt.Sprint("o", i)
		s := &model.Service{
			Name: model.Name{Namespace: "shop", Name: name}, UID: name, Created: int64(i),
			ClusterIPs:      []netip.Addr{nth("10.96.0.0", i), nth("fd96::", i)},
			LoadBalancerIPs: []netip.Addr{nth("203.0.113.0", i), nth("2001:db8:2::", i)},
			Algorithm:       []string{"maglev", "random", "source-hash"}[i%3],
			AffinitySeconds: []uint32{0, 3600}[i/3%2],
			Direct:          []string{"", "ipip"}[i%2],
		}
		for j, p := range ports {
			p.NodePort = uint16(30000 + 10*i + j)
			s.Ports = append(s.Ports, p)
		}
		a := agreed{Service: s}
		for _, first := range []string{"10.244.0.0", "fd02::"} {
			a.slices = append(a.slices,
				endpointsOf(name, name+"-light-"+first, 1, addrsFrom(first, 1+20*i, 12), ports),
				endpointsOf(name, name+"-heavy-"+first, []uint16{1, 3}[i/6], addrsFrom(first, 13+20*i, 4), ports))
		}
		list = append(list, a)
	}
	return list
}

// nth returns the address n beyond another.
func nth(first string, n int) netip.Addr {
	addr := netip.MustParseAddr(first)
	for range n {
		addr = addr.Next()
	}
	return addr
}

func addrsFrom(first string, from, n int) (list []netip.Addr) {
	for i := range n {
		list = append(list, nth(first, from+i))
	}
	return list
}

// live has a node go through many changes, and then delivers the objects in random order, so that
// the rows of its maps are in arbitrary places.
func (m *member) live(t *testing.T, objects []agreed, r *rand.Rand) {
	t.Helper()
	for range 6 {
		for range 20 {
			o := objects[r.IntN(len(objects))]
			part := *o.slices[r.IntN(len(o.slices))]
			part.Endpoints = part.Endpoints[:r.IntN(len(part.Endpoints))]
			part.Weight = uint16(1 + r.IntN(4))
			other := *o.Service
			other.Algorithm, other.AffinitySeconds = []string{"", "maglev", "round-robin"}[r.IntN(3)], uint32(r.IntN(2)*60)
			m.store.SetService(&other)
			m.store.SetSlice(&part)
			if r.IntN(3) == 0 {
				m.store.DeleteService(o.Name)
			}
		}
		m.writeAll(t)
	}
	for _, i := range r.Perm(len(objects)) {
		for _, j := range r.Perm(len(objects[i].slices)) {
			s := *objects[i].slices[j]
			shuffled := make([]model.Endpoint, 0, len(s.Endpoints))
			for _, k := range r.Perm(len(s.Endpoints)) {
				shuffled = append(shuffled, s.Endpoints[k])
			}
			s.Endpoints = shuffled
			m.store.SetSlice(&s)
		}
		m.store.SetService(objects[i].Service)
		m.writeAll(t)
	}
}

// Nodes with the same backends choose alike, whatever happened to them before, and whichever of
// their addresses a flow arrives at: by its first packet, and by a later one where another node got
// the first.
func TestNodesAgree(t *testing.T) {
	twoNodes(t, func(t *testing.T, a, b *member) {
		objects := agreedServices()
		for _, o := range objects {
			a.store.SetService(o.Service)
			for _, s := range o.slices {
				a.store.SetSlice(s)
			}
		}
		a.writeAll(t)
		b.live(t, objects, rand.New(rand.NewPCG(5, 7)))
		for _, o := range objects {
			for _, vip := range o.LoadBalancerIPs {
				for _, p := range o.Ports {
					agree(t, a, b, o.Service, vip, &p)
				}
			}
		}
	})
}

// agree sends flows of many clients through both nodes.
func agree(t *testing.T, a, b *member, service *model.Service, vip netip.Addr, port *model.Port) {
	t.Helper()
	first := "198.51.100.1"
	if vip.Is6() {
		first = "2001:db8:1::1"
	}
	var atA, atB []flowPacket
	for i, client := range addrsFrom(first, 0, 25) {
		for j := range 4 {
			// The same flow of the same client twice, at the address of the service and at the
			// nodes' own.
			source := netip.AddrPortFrom(client, uint16(4000+16*i+j))
			begun, later := byte(syn), byte(ack)
			if port.Protocol == model.SCTP {
				later = syn
			}
			atA = append(atA, flowPacket{source, netip.AddrPortFrom(vip, port.Port), byte(port.Protocol), begun})
			atB = append(atB, flowPacket{source, netip.AddrPortFrom(vip, port.Port), byte(port.Protocol), later})
			source = netip.AddrPortFrom(client, source.Port()+8)
			atA = append(atA, flowPacket{source, netip.AddrPortFrom(a.own(vip), port.NodePort), byte(port.Protocol), begun})
			atB = append(atB, flowPacket{source, netip.AddrPortFrom(b.own(vip), port.NodePort), byte(port.Protocol), later})
		}
	}
	chosen, again := a.backendsOf(t, atA), b.backendsOf(t, atB)
	seen := map[netip.AddrPort]bool{}
	for i, have := range again {
		if want := chosen[i]; !want.IsValid() || have != want {
			t.Fatalf("%s (%s, affinity %d s), %s: %s to %s gets %s at a, and to %s at b %s", service.Name, service.Algorithm,
				service.AffinitySeconds, port.Name, atA[i].client, atA[i].to, want, atB[i].to, have)
		}
		seen[have] = true
	}
	if len(seen) < 8 {
		t.Errorf("%s, %s: 25 clients share %d of 16 backends", service.Name, port.Name, len(seen))
	}
}

// When affinity has lapsed on one node, the others know nothing of it: with Maglev the choice is
// the same.
func TestNodesAgreeAfterLapse(t *testing.T) {
	twoNodes(t, func(t *testing.T, a, b *member) {
		o := agreedServices()[3]
		for _, m := range []*member{a, b} {
			m.store.SetService(o.Service)
			m.store.SetSlice(o.slices[0])
			m.writeAll(t)
		}
		vip := netip.AddrPortFrom(o.LoadBalancerIPs[0], 80)
		for i, client := range addrsFrom("198.51.100.1", 0, 50) {
			a.backendsOf(t, []flowPacket{{netip.AddrPortFrom(client, 3000), vip, tcp, syn}})
			a.expireAffinity(t, client)
			p := []flowPacket{{netip.AddrPortFrom(client, uint16(4000+i)), vip, tcp, syn}}
			if there, here := a.backendsOf(t, p), b.backendsOf(t, p); there[0] != here[0] || !here[0].IsValid() {
				t.Fatalf("%s gets %s where its affinity has lapsed, but %s elsewhere", client, there[0], here[0])
			}
		}
	})
}

// expireAffinity makes the last flow of a client to any service look long past.
func (m *member) expireAffinity(t *testing.T, client netip.Addr) {
	t.Helper()
	for index := range uint32(16) {
		key := bpf.MapsAffinityKey{Client: maps.AddrOf(client), Service: index}
		var known bpf.MapsAffinity
		if m.maps.Affinity.Lookup(&key, &known) != nil {
			continue
		}
		known.Last -= 3601e9
		if err := m.maps.Affinity.Put(&key, &known); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("%s is not remembered", client)
}

// The flow numbers that the Go code computes are those of the programs, with hash keys and without.
func TestNumbers(t *testing.T) {
	for _, seed := range []string{"", clusterSeed} {
		keys := lb.NewHashKeys(seed)
		config := clusterConfig()
		config.HashKey0, config.HashKey1, config.HashKey2, config.HashKey3, config.HashKey4 = keys[0], keys[1], keys[2], keys[3], keys[4]
		eachWith(t, config, func(t *testing.T, w *bareNode, f family) {
			const backends, off = 251, 1000
			index := w.addBackends(t, f, off, backends)
			for i := range 100 {
				client := netip.AddrPortFrom(nth(netip.MustParseAddrPort(f.client+":1").Addr().String(), i), uint16(2000+37*i))
				row := &w.tables.Services[index]
				for _, by := range []struct {
					algorithm lb.Algorithm
					number    uint32
				}{{lb.Random, keys.Flow(client, 30080)}, {lb.Maglev, keys.Flow(client, 30080)}, {lb.SourceHash, keys.Client(client.Addr())}} {
					row.Algorithm = uint8(by.algorithm)
					want := fmt.Sprint(1000 + by.number%backends)
					if have := w.affine(t, f, client.Addr(), client.Port()); have != want {
						t.Fatalf("seed %q, %s, %s: backend %s, want %s", seed, by.algorithm, client, have, want)
					}
					w.empty(t)
				}
			}
		})
	}
}

// addBackends adds a service with backends on this node on different ports, from 1000 on.
func (w *bareNode) addBackends(t *testing.T, f family, off, n int) uint32 {
	t.Helper()
	w.service(t, f.any+":30080", tcp, maps.NodePort, "", false)
	for i := range n {
		at := netip.MustParseAddrPort(f.pod + ":1")
		row := maps.BackendOf(at.Addr(), uint16(1000+i), tcp)
		row.Owner, row.Flags = maps.MakeOwner(w.services, 1), maps.BackendLocal
		w.tables.Backends[off+i], w.tables.Slots[off+i] = row, maps.MakeSlot(uint32(off+i), w.services, 4)
	}
	w.tables.Services[w.services].Words[0] = uint64(maps.MakeWord(uint32(off), n, 4))
	return w.services
}
