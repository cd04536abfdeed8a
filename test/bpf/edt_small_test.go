package bpf

import (
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

const (
	smallPacket = 256 // the size of packets that queues have room for
	fewPackets  = 8   // how many may wait at least
)

// However small packets are, no more of them wait than the queues have room for; and of full ones
// as many as leave in the longest wait.
func TestDeparturesOfSmall(t *testing.T) {
	const rate, sends = 1.25e6, 100_000
	for _, c := range []struct {
		payload int
		most    uint64
	}{
		{1, horizon * rate / second / smallPacket}, {100, horizon * rate / second / smallPacket},
		{smallPacket, horizon * rate / second / (smallPacket + 42)}, {1458, horizon * rate / second / 1500},
	} {
		p := newPaced(t, rate)
		frame := podFrame(true, udp, c.payload)
		run := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Repeat: sends, Context: skbtimed{Came: 1}}
		if err := p.do(func() error { _, err := p.programs["tc_from_pod"].Run(&run); return err }); err != nil {
			t.Fatal(err)
		}
		row, end := p.pace(t, 0), now(t)
		waiting := (row.Next/part - end) * rate / second / uint64(len(frame))
		if waiting > c.most*103/100 || waiting < c.most*8/10 {
			t.Errorf("%d packets of %d bytes wait, want %d", waiting, len(frame), c.most)
		}
		if row.Sent/uint64(len(frame))+row.Dropped != sends {
			t.Errorf("of %d packets of %d bytes, %+v are counted", sends, len(frame), row)
		}
	}
}

// Small packets among full ones may wait as long as those, and a few always.
func TestDeparturesOfFewSmall(t *testing.T) {
	frame := podFrame(true, udp, 1)
	for _, c := range []struct {
		what string
		rate uint64
		size uint64 // average before
		far  uint64
		want string
	}{
		{"among full ones", 1e6, 1000, ahead, "pass"},
		{"among small ones", 1e6, 60, ahead, "drop"},
		{"among small ones, and not far ahead", 1e6, 60, second * 3 / 10, "pass"},
		{"the eighth at a low rate", 300, 60, (fewPackets - 1) * 43 * second / 300, "pass"},
		{"the twelfth at a low rate", 300, 60, (fewPackets + 4) * 43 * second / 300, "drop"},
	} {
		p := newPaced(t, c.rate)
		start := now(t) + c.far
		key := bpf.MapsPaceKey{Ifindex: 1}
		if err := p.maps.PodPaces.Put(&key, &bpf.MapsPodPace{Next: start * part, Size: c.size * part}); err != nil {
			t.Fatal(err)
		}
		verdict, at := p.send(t, frame, 0)
		if verdict != c.want || verdict == "pass" && at != start {
			t.Errorf("%s: %s, leaves at %d, want %s at %d", c.what, verdict, at, c.want, start)
		}
	}
}

// What a shared rate does not admit, nobody counts as sent.
func TestDeparturesDenied(t *testing.T) {
	shop, frame := maps.ShareOf("shop"), podFrame(true, udp, 500)
	for _, c := range []struct {
		late             uint64 // the share that does not admit it
		ofShop, dropped  uint64
		ofNode, nextShop uint64
	}{{late: shop, ofShop: 1e6, ofNode: 1e6}, {late: maps.NodeShare, ofShop: 1e6, ofNode: 1e6}} {
		p := newPaced(t, 1e6)
		p.limitTo(t, maps.Rates{Out: 1e6, Class: maps.Guaranteed, Share: maps.Share{Namespace: "shop", OfNamespace: c.ofShop, OfNode: c.ofNode}})
		p.share(t, c.late, now(t)+horizon+second)
		if verdict, _ := p.send(t, frame, 0); verdict != "drop" {
			t.Errorf("too far ahead for share %d: %s", c.late, verdict)
		}
		if row := p.pace(t, 0); row.Sent != 0 || row.Dropped != 1 {
			t.Errorf("share %d is late: the pod's account is %+v", c.late, row)
		}
		for _, id := range []uint64{shop, maps.NodeShare} {
			dropped := uint64(1)
			if c.late == shop && id == maps.NodeShare { // which is not asked
				dropped = 0
			}
			if row := p.share(t, id, 0); row.Sent != 0 || row.Dropped != dropped {
				t.Errorf("share %d is late: that of share %d is %+v", c.late, id, row)
			}
		}
	}
}
