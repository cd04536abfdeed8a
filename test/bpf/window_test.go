package bpf

import (
	"fmt"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// While packets to a pod wait for long, its senders may have as much in flight as its rate lets
// through in a fifth of a second, in equal parts.
func TestWindow(t *testing.T) {
	const (
		rate   = 1e6
		all    = rate / 5
		ms     = second / 1000
		equal  = 16
		free   = 1024
		others = ^uint64(0)
		later  = others - second + 1 // how long ago an instant is that is a second in the future
	)
	for _, c := range []struct {
		name  string
		row   bpf.MapsReceiveWindow // Began is how long ago
		wait  uint64
		small bool
		want  bpf.MapsReceiveWindow // Began: whether a new turn began; Flows: how many flows the turn has now
	}{
		{"the first packet of all", bpf.MapsReceiveWindow{Began: 1 << 40}, 0, false, bpf.MapsReceiveWindow{Part: free, Began: 1, Flows: 1}},
		{"nobody has to wait", bpf.MapsReceiveWindow{Part: free}, 0, false, bpf.MapsReceiveWindow{Part: free, Flows: 1}},
		{"not for long", bpf.MapsReceiveWindow{Part: free}, 130 * ms, false, bpf.MapsReceiveWindow{Part: free, Flows: 1}},
		{"for long", bpf.MapsReceiveWindow{Part: free}, 220 * ms, false, bpf.MapsReceiveWindow{Part: equal, Flows: 1, Bytes: all + 1}},
		{"for too long", bpf.MapsReceiveWindow{Part: free}, 700 * ms, false, bpf.MapsReceiveWindow{Part: equal, Flows: 1, Bytes: all + 1}},
		{"with others", bpf.MapsReceiveWindow{Part: free, FlowsBefore: others}, 220 * ms, false, bpf.MapsReceiveWindow{Part: equal, Flows: 1, FlowsBefore: others, Bytes: all/64 + 1}},
		{"an acknowledgment", bpf.MapsReceiveWindow{Part: equal}, 100 * ms, true, bpf.MapsReceiveWindow{Part: equal, Bytes: all + 1}},
		{"still for long, in this turn", bpf.MapsReceiveWindow{Part: 12}, 400 * ms, false, bpf.MapsReceiveWindow{Part: 12, Flows: 1, Bytes: all*12/16 + 1}},
		{"another turn", bpf.MapsReceiveWindow{Part: equal, Began: 300 * ms, Flows: others, FlowsBefore: 1}, 100 * ms, false, bpf.MapsReceiveWindow{Part: equal, Began: 1, Flows: 1, FlowsBefore: others, Bytes: all/64 + 1}},
		{"too little comes", bpf.MapsReceiveWindow{Part: equal, Began: 300 * ms}, 30 * ms, false, bpf.MapsReceiveWindow{Part: equal + equal/4, Began: 1, Flows: 1, Bytes: all*5/4 + 1}},
		{"and nobody has to be held", bpf.MapsReceiveWindow{Part: 900, Began: 300 * ms}, 0, false, bpf.MapsReceiveWindow{Part: 1125, Began: 1, Flows: 1}},
		{"too much comes", bpf.MapsReceiveWindow{Part: equal, Began: 300 * ms}, 400 * ms, false, bpf.MapsReceiveWindow{Part: 12, Began: 1, Flows: 1, Bytes: all*12/16 + 1}},
		{"however little they may", bpf.MapsReceiveWindow{Part: 4, Began: 300 * ms}, 400 * ms, false, bpf.MapsReceiveWindow{Part: 4, Began: 1, Flows: 1, Bytes: all/4 + 1}},
		{"the first packet of all, at another processor", bpf.MapsReceiveWindow{}, 0, false, bpf.MapsReceiveWindow{Part: free, Flows: 1}},
		{"the first, and it has to wait for long", bpf.MapsReceiveWindow{}, 220 * ms, false, bpf.MapsReceiveWindow{Part: equal, Flows: 1, Bytes: all + 1}},
		{"no part, in the turn before", bpf.MapsReceiveWindow{Began: 300 * ms}, 100 * ms, false, bpf.MapsReceiveWindow{Part: free, Began: 1, Flows: 1}},
		{"another processor's turn", bpf.MapsReceiveWindow{Part: 4, Began: later}, 400 * ms, false, bpf.MapsReceiveWindow{Part: 4, Flows: 1, Bytes: all/4 + 1}},
		{"after a moment in which all who are far away wait to go on", bpf.MapsReceiveWindow{Part: equal, Began: second, Flows: others, FlowsBefore: others}, 0, false, bpf.MapsReceiveWindow{Part: equal + equal/4, Began: 1, Flows: 1, Bytes: all*5/4 + 1}},
		{"after a pause", bpf.MapsReceiveWindow{Part: 4, Began: 3 * second, Flows: others, FlowsBefore: others, Bytes: 7}, 0, false, bpf.MapsReceiveWindow{Part: free, Began: 1, Flows: 1}},
		{"after a pause, for long", bpf.MapsReceiveWindow{Part: free, Began: second, Flows: others}, 220 * ms, false, bpf.MapsReceiveWindow{Part: equal, Began: 1, Flows: 1, Bytes: all + 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPaced(t, 1)
			p.limitTo(t, maps.Rates{In: rate})
			payload := 200
			if c.small {
				payload = 20
			}
			frame := packet{from: outside4 + ":80", to: pod4 + ":4000", proto: tcp, flags: ack, payload: payload}.bytes()
			began := uint64(0)
			// What the row says of times holds only if the packet comes at once.
			for tries, late := 0, true; late; tries++ {
				if tries == 1000 {
					t.Fatal("the packet never comes within 10 ms")
				}
				start := now(t)
				began = start - uint64(min(int64(c.row.Began), int64(start)))
				row := bpf.MapsPodPace{Next: (start + c.wait) * part, Window: c.row}
				row.Window.Began = began
				key := bpf.MapsPaceKey{Ifindex: 1, Kind: uint32(bpf.MapsPaceKindPACE_IN)}
				if err := p.maps.PodPaces.Put(&key, &row); err != nil {
					t.Fatal(err)
				}
				p.try(t, "tc_to_pod", skbtimed{}, frame)
				late = now(t)-start > 10*ms
			}
			got := p.paceOf(t, bpf.MapsPaceKindPACE_IN, 0).Window
			if got.Began != began {
				got.Began = 1
			} else {
				got.Began = 0
			}
			if got.Flows&(got.Flows-1) == 0 && got.Flows > 0 {
				got.Flows = 1
			}
			if got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// Every sender is counted once; two of them rarely have the same hash.
func TestWindowSenders(t *testing.T) {
	const rate, senders = 1e6, 8
	p := newPaced(t, 1)
	p.limitTo(t, maps.Rates{In: rate})
	key := bpf.MapsPaceKey{Ifindex: 1, Kind: uint32(bpf.MapsPaceKindPACE_IN)}
	for i := range 2 * senders {
		row := p.paceOf(t, bpf.MapsPaceKindPACE_IN, 0)
		row.Next, row.Window.Began, row.Window.Part = (now(t)+patience*3/4)*part, now(t), 16
		if err := p.maps.PodPaces.Put(&key, &row); err != nil {
			t.Fatal(err)
		}
		from := fmt.Sprintf("%s:%d", outside4, 1000+i%senders)
		p.try(t, "tc_to_pod", skbtimed{}, packet{from: from, to: pod4 + ":4000", proto: tcp, flags: ack, payload: 200}.bytes())
	}
	got := p.paceOf(t, bpf.MapsPaceKindPACE_IN, 0).Window.Bytes
	if got < rate/5/senders || got > rate/5/(senders/2) {
		t.Errorf("each of %d senders may have %d bytes in flight", senders, got)
	}
}
