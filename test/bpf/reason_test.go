package bpf

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/reasons"
)

// mishap causes what a reason is counted for, and returns the packet that is counted.
type mishap func(t *testing.T, w *bareNode, f family) packet

// mishaps has one for every reason that the packet programs count.
func mishaps() map[string]mishap {
	return map[string]mishap{
		"no-backend": func(t *testing.T, w *bareNode, f family) packet {
			w.service(t, f.any+":30080", tcp, maps.NodePort, "", false)
			return opening(f)
		},
		"table-race": func(t *testing.T, w *bareNode, f family) packet {
			w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", true)
			w.tables.Slots[w.services] = maps.MakeSlot(w.services, w.services, 4)
			return opening(f)
		},
		"bad-table": func(t *testing.T, w *bareNode, f family) packet {
			w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", true)
			w.tables.Services[w.services].Words[0] = uint64(maps.MakeWord(1<<30, 1, 3))
			return opening(f)
		},
		"fragment": func(t *testing.T, w *bareNode, f family) packet {
			w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", true)
			p := opening(f)
			p.fragment, p.cut = 0x2000, 8
			return p
		},
		"ttl": func(t *testing.T, w *bareNode, f family) packet {
			p := opening(f)
			row := rowOf(p.from, f.pod+":8080", false)
			row.Ifindex, row.Dmac = 1, [6]uint8{2, 0, 0, 0, 0, 1} // sent back where it came from: lo
			w.plant(t, w.maps.CtPending, flowOf(p.from, p.to, tcp), row)
			return withTTL(p, 1)
		},
		"no-port": func(t *testing.T, w *bareNode, f family) packet {
			w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
			p := opening(f)
			for used := 0; used < 4; {
				p.from = addrPort(f.client, 5000+used)
				used++
				b, _ := w.borrow(t, f, p.from, tcp)
				w.establish(t, f, b)
			}
			return opening(f)
		},
		"port-taken": func(t *testing.T, w *bareNode, f family) packet {
			w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
			for i := range 4 {
				w.borrow(t, f, addrPort(f.client, 5000+i), tcp)
			}
			return opening(f)
		},
		"no-address": func(t *testing.T, w *bareNode, f family) packet {
			w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
			if err := w.maps.SetSnatAddr(netip.MustParseAddr(strings.Trim(f.client, "[]"))); err != nil {
				t.Fatal(err)
			}
			return opening(f)
		},
		"flow-race": func(t *testing.T, w *bareNode, f family) packet {
			p := opening(f)
			key, row := flowOf(p.from, p.to, tcp), rowOf(p.from, f.pod+":8080", false)
			row.Checksum = maps.ChecksumOf(key, row) + 1
			if err := w.maps.Ct.Put(&key, &row); err != nil {
				t.Fatal(err)
			}
			return p
		},
		"flows-full": func(t *testing.T, w *bareNode, f family) packet {
			w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
			l := w.dial(t, f, opening(f).from, opening(f).to, f.pod+":8080")
			l.reply(t, "answer", syn|ack, 1000)
			w.fill(t)
			return packet{from: l.client, to: l.vip, proto: tcp, flags: ack, ack: 1001}
		},
		"cluster-ip": func(t *testing.T, w *bareNode, f family) packet {
			w.service(t, f.node+":30080", tcp, maps.ClusterIP, f.pod+":8080", false)
			return opening(f)
		},
		"source-range": func(t *testing.T, w *bareNode, f family) packet {
			w.service(t, f.node+":30080", tcp, maps.LoadBalancer, f.pod+":8080", false)
			w.guard(t, "203.0.113.0/24")
			return opening(f)
		},
		"too-big": func(t *testing.T, w *bareNode, f family) packet {
			p := opening(f)
			row := rowOf(p.from, f.pod+":8080", false)
			row.Ifindex, row.Dmac = 1, [6]uint8{2, 0, 0, 0, 0, 1}
			w.plant(t, w.maps.CtPending, flowOf(p.from, p.to, tcp), row)
			handle := handleOf(t, w.netns)
			lo, err := handle.LinkByName("lo")
			if err == nil {
				err = handle.LinkSetMTU(lo, 1280)
			}
			if err != nil {
				t.Fatal(err)
			}
			p.payload, p.whole = 1400, true
			return p
		},
	}
}

// opening returns the first packet of a flow to the service of a mishap.
func opening(f family) packet {
	return packet{from: f.client + ":4000", to: f.node + ":30080", proto: tcp, flags: syn}
}

// fill leaves no room for a flow.
func (w *bareNode) fill(t *testing.T) {
	t.Helper()
	keys := make([]bpf.MapsFlow, w.maps.Ct.MaxEntries())
	for i := range keys {
		keys[i] = bpf.MapsFlow{Proto: 200, Sport: uint16(i), Dport: uint16(i >> 16)}
	}
	if _, err := w.maps.Ct.BatchUpdate(keys, make([]bpf.MapsCtEntry, len(keys)), nil); err != nil {
		t.Fatal(err)
	}
}

// Every reason is counted for something; one that is not should not exist.
func TestEveryReason(t *testing.T) {
	// Counted by the socket programs; and see direct_test.go, proxy_test.go, edt_test.go,
	// pair_test.go, forged_test.go, tunnel_test.go, source_test.go, clusterip_test.go, policy_test.go.
	elsewhere := []string{"none", "no-memory", "node-port", "stray", "dsr-returned", "no-ports", "no-proxy", "extensions", "horizon", "jam", "forged", "tunnel-port", "tunnel-source", "pod-source", "no-service", "policy", "policy-audit"}
	for _, s := range frames() { // at the devices of pods
		elsewhere = append(elsewhere, s.want)
	}
	list, err := reasons.ReadCounters(newBareNode(t, hooks()[0]).maps.Counters)
	if err != nil {
		t.Fatal(err)
	}
	all := mishaps()
	for _, counter := range list {
		if _, ok := all[counter.Reason]; !ok && !slices.Contains(elsewhere, counter.Reason) && counter.Hook == "tc" {
			t.Errorf("nothing in these tests is counted as %s", counter.Reason)
		}
	}
	for reason, happen := range all {
		t.Run(reason, func(t *testing.T) {
			each(t, func(t *testing.T, w *bareNode, f family) {
				if reason == "too-big" && w.name == "xdp" {
					return // it only sends back what its own link has brought
				}
				p := happen(t, w, f)
				before := w.counted(t, reason)
				w.run(t, w.in, p.bytes())
				if n := w.counted(t, reason); n != before+1 {
					t.Errorf("counted %d times, want once: %v", n-before, w.reasons(t))
				}
			})
		})
	}
}

// A dropped packet is counted only for that, even if its flow found no room either.
func TestCountedOnce(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		p := withTTL(mishaps()["flows-full"](t, w, f), 1)
		key := flowOf(p.from, p.to, tcp)
		var row bpf.MapsCtEntry
		if err := w.maps.CtPending.Lookup(&key, &row); err != nil {
			t.Fatal(err)
		}
		row.Ifindex, row.Dmac = 1, [6]uint8{2, 0, 0, 0, 0, 1} // sent back where it came from: lo
		w.plant(t, w.maps.CtPending, key, row)
		full, expired := w.counted(t, "flows-full"), w.counted(t, "ttl")
		w.run(t, w.in, p.bytes())
		if n, m := w.counted(t, "ttl")-expired, w.counted(t, "flows-full")-full; n != 1 || m != 0 {
			t.Errorf("counted %d times for its TTL and %d times for a full map, want once and never", n, m)
		}
	})
}
