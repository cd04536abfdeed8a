package bpf

import (
	"testing"

	"fairlead.io/fairlead/pkg/flowtable"
	"fairlead.io/fairlead/pkg/maps"
)

func (w *bareNode) flows(t *testing.T) *flowtable.Flows {
	t.Helper()
	flows, err := flowtable.New(w.maps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := flows.Close(); err != nil {
			t.Error(err)
		}
	})
	return flows
}

// doom has the collector judge all flows, giving why as the reason to forget them, and returns how
// many it deleted.
func (w *bareNode) doom(t *testing.T, why uint32, limits *maps.FlowLimits) (deleted int) {
	t.Helper()
	flows := w.flows(t)
	for _, half := range []bool{false, true} {
		err := flows.Each(half, func(keys []maps.Flow, rows []maps.FlowRow) error {
			var list []maps.Doomed
			for i, key := range keys {
				if rows[i].Kind&maps.FlowReply == 0 {
					list = append(list, maps.Doomed{Request: key, Reply: maps.BackOf(key, &rows[i]), Why: why})
				}
			}
			err := flows.Collect(half, 8, limits, list)
			for i := range list {
				if list[i].Outcome == maps.DoomDeleted {
					deleted++
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return deleted
}

// talk makes a UDP flow to a backend on another node: at least half open, and established from the
// second round on.
func (w *bareNode) talk(t *testing.T, f family, client, pod string, rounds int) {
	t.Helper()
	node := f.node + ":30053"
	for range rounds {
		_, out := w.run(t, w.in, packet{from: client, to: node, proto: udp}.bytes())
		snat := f.snat + ":" + portOf(out, f)
		if want := (packet{from: snat, to: pod, proto: udp}).bytes(); string(want) != string(out) {
			t.Fatalf("the datagram does not go to %s: %x", pod, out)
		}
		w.step(t, step{name: "answer", in: packet{from: pod, to: snat, proto: udp}, want: packet{from: node, to: client, proto: udp}})
	}
}

// A client keeps its backend until the flow is forgotten, however many rows it has by then; its
// next packet goes to the current backend.
func TestForgottenFlowBeginsAnew(t *testing.T) {
	for _, rounds := range []int{1, 3} {
		each(t, func(t *testing.T, w *bareNode, f family) {
			client, was, is := f.client+":4000", f.pod+":53", f.pod+":5353"
			w.service(t, f.any+":30053", udp, maps.NodePort, was, false)
			w.talk(t, f, client, was, rounds)
			w.service(t, f.any+":30053", udp, maps.NodePort, is, false)
			w.talk(t, f, client, was, 1)
			if n := w.doom(t, maps.DoomIdle, &maps.FlowLimits{{2, 2, 2, 2, 2}, {2, 2, 2, 2, 2}, {2, 2, 2, 2, 2}}); n > 0 {
				t.Errorf("%d flows in use were forgotten", n)
			}
			if n := w.doom(t, maps.DoomStale, &maps.FlowLimits{}); n != 1 {
				t.Errorf("%d flows were forgotten, want 1", n)
			}
			if open, half := w.rows(t); open != 0 || half != 0 {
				t.Errorf("%d and %d rows are left", open, half)
			}
			w.talk(t, f, client, is, 2)
		})
	}
}

// Packets that come before there is an endpoint leave nothing behind, so later ones find the
// endpoint.
func TestDatagramsBeforeEndpoints(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		client, pod := f.client+":4000", f.pod+":53"
		w.service(t, f.any+":30053", udp, maps.NodePort, "", false)
		for range 3 {
			if verdict, _ := w.run(t, w.in, packet{from: client, to: f.node + ":30053", proto: udp}.bytes()); verdict != "answer" {
				t.Fatalf("a datagram for nobody: %s", verdict)
			}
		}
		if open, half := w.rows(t); open != 0 || half != 0 {
			t.Errorf("%d and %d rows", open, half)
		}
		w.service(t, f.any+":30053", udp, maps.NodePort, pod, false)
		w.talk(t, f, client, pod, 2)
	})
}
