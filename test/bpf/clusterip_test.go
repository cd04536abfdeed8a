package bpf

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/maps"
)

// clusterIPs tells the programs from which ranges Services get their ClusterIPs.
func (w *bareNode) clusterIPs(t *testing.T, prefixes ...string) {
	t.Helper()
	var rows []maps.Range
	for _, prefix := range prefixes {
		rows = append(rows, maps.Range{Service: maps.ClusterIPs, Prefix: netip.MustParsePrefix(prefix)})
	}
	if err := maps.NewRangeTable(w.maps.SrcRanges).Insert(rows); err != nil {
		t.Fatal(err)
	}
}

// serviceRange returns the range of f.clusterIP, and an address there that no service has.
func (f family) serviceRange() (prefix, nobody string) {
	if f.any == "[::]" {
		return "fd03::/108", "[fd03::99]"
	}
	return "10.96.0.0/16", "10.96.0.99"
}

// What a pod sends to an address of Services where none has that port, or to one that none has, is
// refused at once instead of leaving the node.
func TestClusterIPNowhere(t *testing.T) {
	onNodeWithPods(t, 0, func(t *testing.T, h *routerTwoPods, f family) {
		pod, client, k := h.pods[0], h.addrs[0]+":1000", f.kinds()
		prefix, nobody := f.serviceRange()
		at := f.clusterIP()
		h.outside.reach(t, at, true)
		h.outside.reach(t, nobody, true)
		h.service(t, at+":80", tcp, maps.ClusterIP, h.addrs[1]+":8080", true)
		leaves := func(p packet) {
			t.Helper()
			pod.send(t, p)
			h.outside.want(t, withTTL(p, 63))
		}
		toNowhere := []packet{
			{from: client, to: at + ":81", proto: tcp, flags: syn, seq: 7}, {from: client, to: nobody + ":80", proto: tcp, flags: syn, seq: 7},
			{from: client, to: at + ":80", proto: udp}, {from: client, to: nobody + ":53", proto: udp},
			{from: client, to: at + ":80", proto: sctp, flags: syn}, {from: client, to: at + ":81", proto: tcp, flags: syn, seq: 7, options: 1},
		}
		if f.any == "[::]" {
			toNowhere[5].options, toNowhere[5].extension = 0, []byte{0, 0, 1, 4, 0, 0, 0, 0}
		}
		for _, p := range toNowhere {
			leaves(p) // as long as nobody has said what the addresses are for
		}
		h.clusterIPs(t, prefix)
		for _, p := range toNowhere {
			pod.send(t, p)
			if p.proto == tcp {
				if have, want := pod.next(t, 5*time.Second), withMACs(pod, resetOf(p, 5)); !bytes.Equal(have, want) {
					t.Fatalf("%v:\nhave  %x\nwant  %x", p, have, want)
				}
				continue
			}
			want := withMACs(pod, refusalOf(f, host(p.to[:len(p.to)-3]), host(h.addrs[0]), k.unreachable, k.port, 0, p.bytes()[14:]))
			if have := pod.icmp(t, k.unreachable); !bytes.Equal(have, want) {
				t.Fatalf("%v:\nhave  %x\nwant  %x", p, have, want)
			}
		}
		// The rest of a datagram goes where its first fragment went.
		pod.send(t, packet{from: client, to: nobody + ":53", proto: udp, fragment: 0x2000, payload: 800})
		pod.later(t, datagram{from: host(h.addrs[0]), to: host(nobody), proto: udp, id: 7, fragment: 101, payload: make([]byte, 64)})
		// A connection that is there may be another's, as of a proxy on the way; only its begin is ours to judge.
		leaves(packet{from: client, to: nobody + ":80", proto: tcp, flags: ack, seq: 8, ack: 9})
		if n := podReasons(t, h)["no-service"]; n != uint64(len(toNowhere)+2) {
			t.Errorf("counted %d times, want %d", n, len(toNowhere)+2)
		}
	})
}

// What is for somebody is not refused: services, those that only clients outside may use, pods, the
// node's own addresses, the ping of an address, and everything beyond the ranges.
func TestClusterIPSomewhere(t *testing.T) {
	onNodeWithPods(t, 0, func(t *testing.T, h *routerTwoPods, f family) {
		pod, client := h.pods[0], h.addrs[0]+":1000"
		prefix, nobody := f.serviceRange()
		at := f.clusterIP()
		h.clusterIPs(t, prefix, netip.PrefixFrom(netip.MustParseAddr(host(h.addrs[1])), netip.MustParseAddr(host(h.addrs[1])).BitLen()).String())
		to := h.ends(f)[0]
		h.service(t, at+":80", udp, maps.ClusterIP, h.addrs[1]+":8080", true)
		h.converse(t, f, to, client, at+":80", h.addrs[1]+":8080", udp)
		here := packet{from: client, to: h.addrs[1] + ":9", proto: udp}
		pod.send(t, here)
		h.pods[1].want(t, withTTL(here, 63))

		h.service(t, at+":90", udp, maps.ExternalOnly, h.addrs[1]+":8090", true)
		h.outside.reach(t, at, true)
		h.outside.reach(t, nobody, true)
		for _, p := range []packet{
			{from: client, to: at + ":90", proto: udp}, {from: client, to: h.remote + ":53", proto: udp}, {from: client, to: h.remote + ":80", proto: tcp, flags: syn},
		} {
			pod.send(t, p)
			h.outside.want(t, withTTL(p, 63))
		}
		// A process of the node has the address: the stack takes it there, or where its routes say.
		addr := netip.MustParseAddr(host(nobody))
		if err := h.maps.NodeAddrs.Put(maps.AddrOf(addr), maps.NodeAddr{Ifindex: 1}); err != nil {
			t.Fatal(err)
		}
		p := packet{from: client, to: nobody + ":53", proto: udp}
		pod.send(t, p)
		h.outside.want(t, withTTL(p, 63))
		k := f.kinds()
		m := message{from: host(h.addrs[0]), to: host(at), kind: k.echo, rest: 77<<16 | 1, body: []byte("are you there?"), ttl: 64}
		pod.echo(t, m)
		m.ttl = 63
		h.outside.wantICMP(t, "ping", m)
		if n := podReasons(t, h)["no-service"]; n != 0 {
			t.Errorf("counted %d times, want 0", n)
		}
	})
}

// withMACs gives a frame the addresses of what comes to a pod.
func withMACs(w *wire, frame []byte) []byte {
	copy(frame, w.macs(false))
	return frame
}
