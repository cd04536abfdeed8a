package bpf

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// A client keeps its backend although another CPU has stored a later time than this one reads:
// coarse clocks of two CPUs may be read in any order.
func TestAffinityOfTheFuture(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		for _, pod := range []string{":8080", ":8081"} {
			w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+pod, true)
		}
		// both backends belong to the second service, whose frontend it is by now
		w.tables.Backends[1].Owner = maps.MakeOwner(2, 1)
		w.tables.Slots[1] = maps.MakeSlot(1, 2, 3)
		w.tables.Services[2].Words = [2]uint64{uint64(maps.MakeWord(1, 2, 3))}
		w.tables.Services[2].AffinitySeconds = 60
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
			t.Fatal(err)
		}
		for n := range 32 {
			client := f.nth(n)
			key := bpf.MapsAffinityKey{Client: maps.AddrOf(client), Service: 2}
			if err := w.maps.Affinity.Put(&key, &bpf.MapsAffinity{Last: uint64(now.Nano()) + 30e9, Row: 1}); err != nil {
				t.Fatal(err)
			}
			from := fmt.Sprintf("%s:4000", client)
			if client.Is6() {
				from = fmt.Sprintf("[%s]:4000", client)
			}
			w.step(t, step{name: "from " + from, in: packet{from: from, to: f.node + ":30053", proto: udp},
				want: packet{from: from, to: f.pod + ":8080", proto: udp}})
		}
	})
}
