package bpf

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// borrower is a flow with one of the four ports of the node.
type borrower struct {
	client, snat string
	proto        byte
}

// borrow begins a flow to the only backend, and reports whether it got a port.
func (w *bareNode) borrow(t *testing.T, f family, client string, proto byte) (borrower, bool) {
	t.Helper()
	verdict, out := w.run(t, w.in, packet{from: client, to: f.node + ":30080", proto: proto, flags: syn}.bytes())
	if verdict != "pass" {
		return borrower{}, false
	}
	return borrower{client, f.snat + ":" + portOf(out, f), proto}, true
}

// idle makes the reply of a flow look as if it had come, or been asked for, that many ticks ago.
func (w *bareNode) idle(t *testing.T, f family, b borrower, ticks uint32) {
	t.Helper()
	key := flowOf(f.pod+":8080", b.snat, b.proto)
	var row bpf.MapsCtEntry
	if err := w.maps.CtPending.Lookup(&key, &row); err != nil {
		t.Fatal(err)
	}
	row.Seen -= ticks
	if err := w.maps.CtPending.Put(&key, &row); err != nil {
		t.Fatal(err)
	}
}

// establish establishes a flow.
func (w *bareNode) establish(t *testing.T, f family, b borrower) {
	t.Helper()
	w.step(t, step{name: "answer", in: packet{from: f.pod + ":8080", to: b.snat, proto: b.proto, flags: syn | ack, seq: 1000},
		want: packet{from: f.node + ":30080", to: b.client, proto: b.proto, flags: syn | ack, seq: 1000}})
	w.step(t, step{name: "proof", in: packet{from: b.client, to: f.node + ":30080", proto: b.proto, flags: ack, ack: 1001},
		want: packet{from: b.snat, to: f.pod + ":8080", proto: b.proto, flags: ack, ack: 1001}})
}

// has reports which rows there are of a flow that is not established.
func (w *bareNode) has(t *testing.T, f family, b borrower) (request, reply bool) {
	t.Helper()
	there, ok, err := maps.LookupFlow(w.maps.CtPending, flowOf(b.client, f.node+":30080", b.proto))
	if err != nil {
		t.Fatal(err)
	}
	back, known, err := maps.LookupFlow(w.maps.CtPending, flowOf(f.pod+":8080", b.snat, b.proto))
	if err != nil {
		t.Fatal(err)
	}
	key := flowOf(b.client, b.snat, b.proto)
	return ok && maps.PortOf(there.Sport) == netip.MustParseAddrPort(b.snat).Port(), known && back.Daddr == key.Saddr && back.Dport == key.Sport
}

// If all ports are in use, a flow that is not established gives its port to a new one, and loses
// both rows: first one of the same client, then whichever was begun or answered longest ago.
// Established flows keep theirs, and who has most of the ports takes none from others.
func TestWhoGivesWay(t *testing.T) {
	for _, tt := range []struct {
		name   string
		own    int   // ports that the client has itself already
		kept   int   // how many of all ports are those of established flows, the client's own first
		ages   []int // of the four flows
		client int   // who gives way; -1: nobody
	}{
		{"the oldest", 0, 0, []int{3, 9, 2, 5}, 1},
		{"the oldest that is not established", 0, 2, []int{3, 9, 2, 5}, 3},
		{"the client's own, though others are older", 1, 0, []int{1, 9, 20, 5}, 0},
		{"the client's older one", 2, 0, []int{1, 4, 20, 5}, 1},
		{"another's, as the client has fewer", 1, 1, []int{0, 2, 30, 4}, 2},
		{"nobody, as all are established", 0, 4, []int{0, 0, 0, 0}, -1},
		{"nobody, as the client has nearly all", 3, 3, []int{0, 0, 0, 30}, -1},
	} {
		for _, proto := range []byte{tcp, udp, sctp} {
			if proto == sctp && tt.kept > 0 {
				continue // sctp_test.go has how associations are established
			}
			t.Run(fmt.Sprintf("%s, %d", tt.name, proto), func(t *testing.T) {
				each(t, func(t *testing.T, w *bareNode, f family) {
					w.service(t, f.any+":30080", proto, maps.NodePort, f.pod+":8080", false)
					client := f.nth(1).String()
					var flows []borrower
					for i := range 4 {
						from := netip.AddrPortFrom(f.nth(2+i), 4000)
						if i < tt.own {
							from = netip.AddrPortFrom(f.nth(1), uint16(5000+i))
						}
						b, ok := w.borrow(t, f, from.String(), proto)
						if !ok {
							t.Fatalf("flow %d got no port of four", i)
						}
						if i < tt.kept {
							w.establish(t, f, b)
						} else if tt.ages[i] > 0 {
							w.idle(t, f, b, uint32(tt.ages[i]))
						}
						flows = append(flows, b)
					}
					b, ok := w.borrow(t, f, netip.AddrPortFrom(netip.MustParseAddr(client), 6000).String(), proto)
					if ok != (tt.client >= 0) {
						t.Fatalf("got a port: %t; counted: %v", ok, w.reasons(t))
					}
					if taken, none := w.counted(t, "port-taken"), w.counted(t, "no-port"); ok && (taken != 1 || none != 0) || !ok && (taken != 0 || none != 1) {
						t.Errorf("counted %d taken and %d without, got one: %t", taken, none, ok)
					}
					for i, other := range flows {
						if i < tt.kept {
							continue
						}
						there, back := w.has(t, f, other)
						if gone := i == tt.client; there == gone || back == gone {
							t.Errorf("flow %d has its rows: %t and %t", i, there, back)
						}
					}
					if ok && b.snat != flows[tt.client].snat {
						t.Errorf("got %s, want that of flow %d, %s", b.snat, tt.client, flows[tt.client].snat)
					}
					if c, kept := w.lruCounts(t, "ct_pending"); c.Evicted != 0 || kept != uint64(c.Rows) {
						t.Errorf("rows were made and deleted that nobody counted: %+v", c)
					}
				})
			})
		}
	}
}

// What a node gets at its tunnel's port by UDP is for the tunnel, so no flow of UDP gets that port, not
// even if there is no other. TCP has no tunnel.
func TestTunnelPortIsNotLent(t *testing.T) {
	rig.Root(t)
	const tunnelPort = 8472
	for name, f := range families() {
		for _, tt := range []struct {
			proto       byte
			first, last uint16
			want        int
		}{
			{udp, tunnelPort - 1, tunnelPort + 2, 3},
			{tcp, tunnelPort - 1, tunnelPort + 2, 4},
			{udp, tunnelPort, tunnelPort, 0},
		} {
			t.Run(fmt.Sprintf("%s, %d of %d ports, %d", name, tt.want, tt.last-tt.first+1, tt.proto), func(t *testing.T) {
				t.Parallel()
				config := standardConfig()
				config.SnatFirst, config.SnatLast, config.TunnelPort = tt.first, tt.last, tunnelPort
				w := newBareNodeOf(t, hooks()[0], config)
				w.service(t, f.any+":30080", tt.proto, maps.NodePort, f.pod+":8080", false)
				ports := map[string]bool{}
				for i := range 40 { // the later ones take the ports of the earlier ones
					if b, ok := w.borrow(t, f, netip.AddrPortFrom(f.nth(2+i), 4000).String(), tt.proto); ok {
						ports[portOfText(b.snat)] = true
					}
				}
				if len(ports) != tt.want || tt.proto == udp && ports[fmt.Sprint(tunnelPort)] {
					t.Errorf("flows got the ports %v, want %d ports", ports, tt.want)
				}
				if refused := w.counted(t, "no-port"); (refused == 40) != (tt.want == 0) {
					t.Errorf("%d flows got no port", refused)
				}
			})
		}
	}
}

// A pod may use half of the ports that there are for pods, and any two pods share about half of
// theirs: what one keeps open leaves ports for each of the others.
func TestShareOfPorts(t *testing.T) {
	rig.Root(t)
	const pods, first, last = 24, 61000, 61255 // pods have the upper 128
	for name, f := range families() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := standardConfig()
			config.Masquerade, config.SnatFirst, config.SnatLast = 1, first, last
			w := newBareNodeOf(t, hooks()[0], config)
			var list []maps.Pod
			for i := range pods {
				list = append(list, maps.Pod{Addrs: []netip.Addr{podOf(f, i)}, Index: uint32(100 + i)})
			}
			if _, err := w.maps.SetPods(list); err != nil {
				t.Fatal(err)
			}
			shares := make([][]string, pods)
			for i := range pods {
				for n := range 600 { // its own flows give way to it
					from := netip.AddrPortFrom(podOf(f, i), uint16(2000+n)).String()
					_, out := w.run(t, w.out, packet{from: from, to: addrPort(f.vip, 9000+i), proto: udp}.bytes())
					if port := portOf(out, f); !slices.Contains(shares[i], port) {
						shares[i] = append(shares[i], port)
					}
				}
			}
			for i, share := range shares {
				if len(share) != 64 {
					t.Errorf("pod %d has used %d ports of 128, want 64", i, len(share))
				}
				for j, other := range shares[:i] {
					both := 0
					for _, port := range share {
						if slices.Contains(other, port) {
							both++
						}
					}
					if both < 16 || both > 48 {
						t.Errorf("pods %d and %d share %d of 64 ports", i, j, both)
					}
				}
			}
			if n := w.counted(t, "no-port"); n > 0 {
				t.Errorf("%d flows got no port", n)
			}
		})
	}
}

// podOf returns the i-th address of a node's pods.
func podOf(f family, i int) netip.Addr {
	addr := netip.MustParseAddr(host(f.pod))
	for range i {
		addr = addr.Next()
	}
	return addr
}

// A pod that keeps all ports that it may use leaves every other pod some for each of its flows.
func TestPodKeepsItsShare(t *testing.T) {
	rig.Root(t)
	for name, f := range families() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := standardConfig()
			config.Masquerade, config.SnatFirst, config.SnatLast = 1, 61000, 61255
			w := newBareNodeOf(t, hooks()[0], config)
			attacker, victim := podOf(f, 0), podOf(f, 1)
			if _, err := w.maps.SetPods([]maps.Pod{{Addrs: []netip.Addr{attacker}, Index: 100}, {Addrs: []netip.Addr{victim}, Index: 101}}); err != nil {
				t.Fatal(err)
			}
			to, refused := f.vip+":53", 0
			for n := range 600 {
				there := packet{from: netip.AddrPortFrom(attacker, uint16(2000+n)).String(), to: to, proto: udp}
				verdict, out := w.run(t, w.out, there.bytes())
				if verdict != "pass" {
					refused++
					continue
				}
				w.run(t, w.in, packet{from: to, to: f.snat + ":" + portOf(out, f), proto: udp}.bytes())
				w.run(t, w.out, there.bytes())
			}
			if open, _ := w.rows(t); open != 2*64 || refused != 600-64 {
				t.Errorf("the pod keeps %d flows and %d were refused, want 64 and %d", open/2, refused, 600-64)
			}
			for n := range 600 {
				there := packet{from: netip.AddrPortFrom(victim, uint16(2000+n)).String(), to: to, proto: udp}
				if verdict, _ := w.run(t, w.out, there.bytes()); verdict != "pass" {
					t.Fatalf("flow %d of another pod: %s", n, verdict)
				}
			}
			if open, _ := w.rows(t); open != 2*64 {
				t.Errorf("%d flows are still established, want 64", open/2)
			}
		})
	}
}
