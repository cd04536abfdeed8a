package bpf

import (
	"fmt"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// share returns what pods have sent of a shared rate, and sets when they may send next unless that
// is zero.
func (p *ratedPod) share(t *testing.T, id, next uint64) (row bpf.MapsPodPace) {
	t.Helper()
	if next > 0 {
		row.Next = next * part
		if err := p.maps.SharePaces.Put(&id, &row); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.maps.SharePaces.Lookup(&id, &row); err != nil {
		t.Fatal(err)
	}
	return row
}

// A packet leaves when the pod's own rate, its namespace's and the node's all let it, and takes
// time of each.
func TestDeparturesShared(t *testing.T) {
	shop := maps.ShareOf("shop")
	for _, c := range []struct {
		name                  string
		own, namespace, whole uint64
	}{
		{"all of a namespace", 0, 1e6, 0},
		{"all of the node", 0, 0, 1e6},
		{"both", 0, 1e6, 2e6},
		{"the node less", 0, 2e6, 1e6},
		{"its own too", 3e6, 2e6, 4e6},
		{"its own the least", 1e6, 2e6, 3e6},
	} {
		for _, is4 := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, IPv4 %t", c.name, is4), func(t *testing.T) {
				p := newPaced(t, 1e6)
				p.limitTo(t, maps.Rates{Out: c.own, Class: maps.Guaranteed, Share: maps.Share{Namespace: "shop", OfNamespace: c.namespace, OfNode: c.whole}})
				start, least := now(t)+ahead, uint64(1e12)
				if c.own > 0 {
					p.pace(t, start)
				}
				rates := map[uint64]uint64{shop: c.namespace, maps.NodeShare: c.whole}
				for id, rate := range rates {
					if rate > 0 {
						p.share(t, id, start)
						least = min(least, rate)
					}
				}
				if c.own > 0 {
					least = min(least, c.own)
				}
				bytes := uint64(0)
				for i := range 20 {
					frame := podFrame(is4, []byte{tcp, udp}[i%2], 500)
					verdict, at := p.send(t, frame, 0)
					want := start + bytes*second/least
					if verdict != "pass" || at > want || want-at > 20 {
						t.Fatalf("packet %d: %s, leaves at %d, want %d", i, verdict, at, want)
					}
					bytes += uint64(len(frame))
				}
				for id, rate := range rates {
					if rate == 0 {
						continue
					}
					next := start*part + bytes*second*part/rate
					if row := p.share(t, id, 0); row.Sent != bytes || row.Dropped != 0 || row.Next > next || next-row.Next > 20 {
						t.Errorf("share %d: counted %+v, sent %d bytes, want the next to leave at %d", id, row, bytes, next)
					}
				}
			})
		}
	}
}

// A shared rate serves the highest class first: others are dropped earlier when much is waiting
// already.
func TestDeparturesByClass(t *testing.T) {
	for _, c := range []struct {
		name     string
		class    maps.Class
		patience uint64
		far      uint64 // less than the next class may wait
		prior    uint32
	}{
		{"guaranteed", maps.Guaranteed, 2 * second, 3 * second, 6},
		{"burstable", maps.Burstable, second / 4, second * 3 / 2, 0},
		{"best effort", maps.BestEffort, second / 20, second / 5, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPaced(t, 1e6)
			p.limitTo(t, maps.Rates{Class: c.class, Share: maps.Share{OfNode: 1e9}})
			frame := podFrame(true, udp, 500)
			far, paused := uint64(0), true
			for range 20 {
				far = now(t) + c.far
				p.share(t, maps.NodeShare, far)
				verdict, _ := p.send(t, frame, 0)
				if paused = now(t)+c.patience > far; paused { // the test was paused, so it was not far any more
					continue
				}
				if row := p.share(t, maps.NodeShare, 0); verdict != "drop" || row.Next != far*part || row.Dropped != 1 || row.Sent != 0 {
					t.Errorf("too far ahead: %s, counted %+v", verdict, row)
				}
				break
			}
			if paused || p.counted(t, "horizon") == 0 {
				t.Errorf("the machine pauses too often: %t; counted %d times", paused, p.counted(t, "horizon"))
			}
			near := now(t) + c.patience*9/10
			p.share(t, maps.NodeShare, near)
			verdict, out, _ := p.try(t, "tc_from_pod", skbtimed{}, frame)
			if late := now(t) > near; verdict != "pass" || !late && out.Tstamp != near || out.Prior != c.prior {
				t.Errorf("not too far ahead: %s, leaves at %d, want %d, priority %d", verdict, out.Tstamp, near, out.Prior)
			}
			p.limitTo(t, maps.Rates{Class: c.class})
			if verdict, out, _ := p.try(t, "tc_from_pod", skbtimed{}, frame); verdict != "pass" || out.Tstamp != 0 || out.Prior != c.prior {
				t.Errorf("without a rate: %s, leaves at %d, priority %d", verdict, out.Tstamp, out.Prior)
			}
		})
	}
}

// What a pod drops for its own rate takes nothing of a shared rate.
func TestDeparturesLate(t *testing.T) {
	p := newPaced(t, 1e6)
	p.limitTo(t, maps.Rates{Out: 1e6, Share: maps.Share{OfNode: 1e6}})
	start := now(t) + ahead
	p.pace(t, now(t)+horizon+second)
	p.share(t, maps.NodeShare, start)
	if verdict, _ := p.send(t, podFrame(true, udp, 500), 0); verdict != "drop" {
		t.Errorf("too far ahead for its own rate: %s", verdict)
	}
	if row := p.share(t, maps.NodeShare, 0); row.Next != start*part || row.Sent != 0 || row.Dropped != 0 {
		t.Errorf("it has taken %+v of the shared rate", row)
	}
}
