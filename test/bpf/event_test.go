package bpf

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// events returns the event reader, watching for w.
func (w *bareNode) events(t *testing.T, watch maps.Watch) *datapath.Events {
	t.Helper()
	events, err := datapath.NewEvents(w.maps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { events.Close() })
	if err := events.Want(watch); err != nil {
		t.Fatal(err)
	}
	return events
}

// eventsText returns the pending events, as text.
func eventsText(t *testing.T, events *datapath.Events) (list []string) {
	t.Helper()
	var e maps.Event
	for {
		there, err := events.Read(&e, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if !there {
			return list
		}
		list = append(list, eventText(&e))
	}
}

func eventText(e *maps.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d", e.Hook, e.Reason)
	if e.IsDropped != 0 {
		b.WriteString(" dropped")
	}
	if e.IsLeaving != 0 {
		b.WriteString(" leaving")
	}
	fmt.Fprintf(&b, " %s > %s", maps.FlowSource(e.Flow), maps.FlowDestination(e.Flow))
	if to, ok := maps.EventDestination(e); ok {
		fmt.Fprintf(&b, " = %s > %s", maps.EventSource(e), to)
	}
	return b.String()
}

// hookNumber returns the number of a node's hook.
func (w *bareNode) hookNumber() bpf.MapsHook {
	if w.name == "xdp" {
		return bpf.MapsHookHOOK_XDP
	}
	return bpf.MapsHookHOOK_TC
}

const everything = ^uint64(0)

// Drops and the choice of a backend make events; other packets of a flow do not.
func TestEvents(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		w.service(t, f.any+":30054", udp, maps.NodePort, "", true)
		client, at := f.client+":4000", w.hookNumber()
		bare := func(text string) string { return netip.MustParseAddrPort(text).String() }
		choice := fmt.Sprintf("%d/0 %s > %s = %s > %s", at, bare(client), bare(f.node+":30053"), bare(client), bare(f.pod+":53"))
		drop := fmt.Sprintf("%d/%d dropped %s > %s", at, bpf.MapsReasonREASON_NO_BACKEND, bare(client), bare(f.node+":30054"))
		first := packet{from: client, to: f.node + ":30053", proto: udp}.bytes()
		nobody := packet{from: client, to: f.node + ":30054", proto: udp}.bytes()

		clients := func(addr string) (watch maps.Watch) {
			watch.Reasons = everything
			maps.SetWatchAddr(&watch, netip.MustParsePrefix(addr))
			return watch
		}
		bits := "/28"
		if f.any != "0.0.0.0" {
			bits = "/120"
		}
		for _, tt := range []struct {
			name  string
			watch maps.Watch
			want  []string
		}{
			{"everything", maps.Watch{Reasons: everything}, []string{choice, drop}},
			{"nothing", maps.Watch{}, nil},
			{"drops", maps.Watch{Reasons: everything &^ maps.ChoiceBit}, []string{drop}},
			{"choices", maps.Watch{Reasons: maps.ChoiceBit}, []string{choice}},
			{"another reason", maps.Watch{Reasons: 1 << bpf.MapsReasonREASON_TTL}, nil},
			{"few choices", maps.Watch{Reasons: everything, Sample: 1 << 31}, []string{drop}},
			{"the port of a frontend", maps.Watch{Reasons: everything, Port: maps.PortOf(30054)}, []string{drop}},
			{"the port of a backend", maps.Watch{Reasons: everything, Port: maps.PortOf(53)}, []string{choice}},
			{"the port of the client", maps.Watch{Reasons: everything, Port: maps.PortOf(4000)}, []string{choice, drop}},
			{"another port", maps.Watch{Reasons: everything, Port: maps.PortOf(4001)}, nil},
			{"the network of the client", clients(host(f.client) + bits), []string{choice, drop}},
			{"the backend", clients(netip.PrefixFrom(netip.MustParseAddr(host(f.pod)), netip.MustParseAddr(host(f.pod)).BitLen()).String()),
				[]string{choice}},
			{"the other family", clients(map[bool]string{true: "2001:db8::/32", false: "0.0.0.0/0"}[f.any == "0.0.0.0"]), nil},
		} {
			events := w.events(t, tt.watch)
			w.run(t, w.in, first)
			w.run(t, w.in, nobody)
			if have := eventsText(t, events); fmt.Sprint(have) != fmt.Sprint(tt.want) {
				t.Errorf("%s: told %q, want %q", tt.name, have, tt.want)
			}
			if err := events.Close(); err != nil {
				t.Fatal(err)
			}
			w.forgetPending(t)
		}
	})
}

// forgetPending deletes the flows that are not established.
func (w *bareNode) forgetPending(t *testing.T) {
	t.Helper()
	var key bpf.MapsFlow
	for w.maps.CtPending.NextKey(nil, &key) == nil {
		if err := w.maps.CtPending.Delete(&key); err != nil {
			t.Fatal(err)
		}
	}
}

// Packets of an established flow make no events, and nothing does once nobody has asked for a
// while.
func TestEventsOfFlows(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		client, pod := f.client+":4000", f.pod+":53"
		events := w.events(t, maps.Watch{Reasons: everything})
		for range 3 {
			w.run(t, w.in, packet{from: client, to: f.node + ":30053", proto: udp}.bytes())
			if w.out != "" {
				w.run(t, w.out, packet{from: pod, to: client, proto: udp}.bytes())
			}
		}
		if have := eventsText(t, events); len(have) != 1 {
			t.Errorf("told %q, want only the choice", have)
		}
		if err := w.maps.Watch.Put(uint32(0), maps.Watch{Reasons: everything, Until: 1}); err != nil {
			t.Fatal(err)
		}
		w.run(t, w.in, packet{from: f.client + ":4001", to: f.node + ":30053", proto: udp}.bytes())
		if have := eventsText(t, events); len(have) != 0 {
			t.Errorf("told %q although nobody asked", have)
		}
	})
}

// A drop on the way out says so.
func TestEventLeaving(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		if w.out == "" {
			return
		}
		w.service(t, f.vip+":53", udp, maps.LoadBalancer, f.pod+":53", true)
		client, pod := f.client+":4000", f.pod+":53"
		w.run(t, w.in, packet{from: client, to: f.vip + ":53", proto: udp}.bytes())
		w.tables.Services[w.services].Flags |= maps.SourceRanges
		events := w.events(t, maps.Watch{Reasons: everything})
		w.step(t, step{name: "answer", leaving: true, in: packet{from: pod, to: client, proto: udp}, drop: "source-range"})
		bare := func(text string) string { return netip.MustParseAddrPort(text).String() }
		want := fmt.Sprintf("[1/%d dropped leaving %s > %s = %s > %s]", bpf.MapsReasonREASON_SOURCE_RANGE, bare(pod), bare(client), bare(f.vip+":53"), bare(client))
		if have := eventsText(t, events); fmt.Sprint(have) != want {
			t.Errorf("told %q, want %q", have, want)
		}
	})
}

// In a flood only some drops make events, and the rest are counted as lost; choices still make
// events.
func TestEventFlood(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		w.service(t, f.vip+":53", udp, maps.ClusterIP, f.pod+":53", true)
		events := w.events(t, maps.Watch{Reasons: everything})
		before, err := events.Lost()
		if err != nil {
			t.Fatal(err)
		}
		const flood = 20000
		began := rig.Coarse(t)
		w.repeat(t, packet{from: f.client + ":4000", to: f.vip + ":53", proto: udp}.bytes(), flood)
		most := 512 + int((rig.Coarse(t)-began)/(2*time.Millisecond))
		w.run(t, w.in, packet{from: f.client + ":4000", to: f.node + ":30053", proto: udp}.bytes())
		lost, err := events.Lost()
		if err != nil {
			t.Fatal(err)
		}
		list := eventsText(t, events)
		drops := len(list) - 1
		if !strings.Contains(list[drops], "/0 ") {
			t.Errorf("the last of %d is %q, want the choice", len(list), list[drops])
		}
		if drops < 512 || drops > most || drops+int(lost-before) != flood {
			t.Errorf("reported %d drops and lost %d of %d, want 512 to %d reported", drops, lost-before, flood, most)
		}
	})
}

// The programs contain event code only in the function that drops a packet, and where a flow
// begins.
func TestEventsCostNothing(t *testing.T) {
	for _, h := range hooks() {
		spec, err := h.load()
		if err != nil {
			t.Fatal(err)
		}
		for name, program := range spec.Programs {
			function, known := "", false
			for _, in := range program.Instructions {
				if btf.FuncMetadata(&in) != nil {
					function = in.Symbol()
				}
				switch in.Reference() {
				case "watch", "watched", "events":
					known = true
					if function != "event_tell" && !strings.HasSuffix(function, "_begin") {
						t.Errorf("%s: %s refers to %s", name, function, in.Reference())
					}
				}
			}
			if !known {
				t.Errorf("%s tells nothing", name)
			}
		}
	}
}

// repeat runs a program on a packet that it leaves unchanged, the given number of times.
func (w *bareNode) repeat(t *testing.T, frame []byte, times uint32) {
	t.Helper()
	err := w.do(func() error {
		return rig.WithoutSignals(func() error {
			_, err := w.programs[w.in].Run(&ebpf.RunOptions{Data: frame, Repeat: times})
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}
