package bpf

import (
	"bytes"
	"fmt"
	stdmaps "maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// tally returns the counts of fragments that came before their first.
func (w *bareNode) tally(t *testing.T) (tally bpf.MapsEarlyTally) {
	t.Helper()
	if err := w.maps.EarlyTally.Lookup(uint32(0), &tally); err != nil {
		t.Fatal(err)
	}
	return tally
}

// waits returns the bytes of the fragments that wait.
func (w *bareNode) waits(t *testing.T) (list [][]byte) {
	t.Helper()
	for i := range w.maps.EarlySlots.MaxEntries() {
		var row bpf.MapsEarlySlot
		var frame bpf.MapsEarlyFrame
		if err := w.maps.EarlySlots.Lookup(i, &row); err != nil {
			t.Fatal(err)
		}
		if row.Len == 0 {
			continue
		}
		if err := w.maps.EarlyFrames.Lookup(i, &frame); err != nil {
			t.Fatal(err)
		}
		list = append(list, frame.Bytes[:row.Len])
	}
	return list
}

// loop reads what comes in through a node's loopback device, to which test runs send.
type loop struct{ socket int }

func (w *bareNode) listen(t *testing.T) loop {
	t.Helper()
	var s loop
	err := w.netns.Do(func() (err error) {
		s.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 3<<8)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s.socket) })
	return s
}

// next returns the next frame that came in.
func (s loop) next(t *testing.T) []byte {
	t.Helper()
	poll := []unix.PollFd{{Fd: int32(s.socket), Events: unix.POLLIN}}
	frame := make([]byte, 1<<14)
	if n, err := unix.Poll(poll, int((10 * time.Second).Milliseconds())); n != 1 {
		t.Fatalf("nothing comes in: %v", err)
	}
	n, _, err := unix.Recvfrom(s.socket, frame, 0)
	if err != nil {
		t.Fatal(err)
	}
	return frame[:n]
}

// code runs a program, whatever the node's hook is, and returns its return code.
func (w *bareNode) code(program string, frame []byte) (code uint32, err error) {
	err = w.do(func() (err error) {
		code, err = w.programs[program].Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, 1<<14)})
		return err
	})
	return code, err
}

// eachTC runs a tc story in both families.
func eachTC(t *testing.T, story func(t *testing.T, w *bareNode, f family)) {
	t.Helper()
	eachOn(t, hooks()[:1], standardConfig(), story)
}

// Fragments that came before their first come in once more after it, and go where the first goes;
// fragments of another datagram go on waiting.
func TestLate(t *testing.T) {
	eachTC(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		client, node, pod := f.client+":4000", f.node+":30053", f.pod+":53"
		for id, order := range [][]int{{3, 2, 1, 0}, {1, 2, 3, 0}, {3, 0, 1, 2}, {2, 2, 0, 3, 1}} {
			id := uint32(id) + 50
			in, want := split(udpTo(client, node, 3000), 800, id), split(udpTo(client, pod, 3000), 800, id)
			other := split(udpTo(client, node, 3000), 800, id+100)
			w.passes(t, "another's", w.in, other[1], other[1])
			first := slices.Index(order, 0)
			for _, i := range order[:first] {
				w.passes(t, "ahead", w.in, in[i], in[i])
			}
			line := w.listen(t)
			verdict, out := w.run(t, w.in, in[0].bytes())
			if last := in[order[first-1]].bytes(); verdict != "answer" || !bytes.Equal(out, last) {
				t.Errorf("%v: the first: %s, %x, want %x", order, verdict, out, last)
			}
			for _, i := range append([]int{0}, order[:first-1]...) {
				if frame := line.next(t); !bytes.Equal(frame, in[i].bytes()) {
					t.Errorf("%v: came in again: %x, want %x", order, frame, in[i].bytes())
				}
			}
			for _, i := range append([]int{0}, order...) { // what came in again, and the rest
				w.passes(t, fmt.Sprint(order, " again"), w.in, in[i], want[i])
			}
			if left := w.waits(t); len(left) != begun(id) || !bytes.Equal(left[len(left)-1], other[1].bytes()) {
				t.Errorf("%v: %d wait, want that of the others", order, len(left))
			}
		}
		if tally := w.tally(t); tally != (bpf.MapsEarlyTally{Kept: 3 + 3 + 1 + 2 + 4, Returned: 3 + 3 + 1 + 2}) {
			t.Errorf("counted: %+v", tally)
		}
	})
}

// begun returns how many datagrams of TestLate were begun up to an id.
func begun(id uint32) int { return int(id) - 49 }

// Fragments of a datagram that is not for a service are not kept once its first has come, and XDP
// keeps none at all.
func TestStrangers(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		w.service(t, f.any+":30054", udp, maps.NodePort, "", true)
		for id, d := range map[uint32]datagram{
			1: udpTo(f.client+":4000", f.node+":9999", 3000), 2: udpTo(f.client+":4000", f.node+":30054", 3000),
			3: {from: host(f.client), to: host(f.node), proto: 50, payload: make([]byte, 3000)},
		} {
			in := split(d, 800, id)
			w.run(t, w.in, in[0].bytes())
			for range 3 {
				w.passes(t, "later", w.in, in[1], in[1])
			}
		}
		if left := w.waits(t); len(left) != 0 {
			t.Errorf("%d wait", len(left))
		}
		late := split(udpTo(f.client+":4000", f.node+":30053", 3000), 800, 4)
		w.passes(t, "ahead", w.in, late[1], late[1])
		if have, want := len(w.waits(t)), map[string]int{"tc": 1}[w.name]; have != want {
			t.Errorf("%d wait, want %d", have, want)
		}
	})
}

// XDP leaves a first fragment that others may wait for to tc, and no other.
func TestLateAtXDP(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		if w.name != "xdp" {
			return
		}
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		stdmaps.Copy(w.programs, w.loaded.programs(t, hooks()[0]))
		client, node, pod := f.client+":4000", f.node+":30053", f.pod+":53"
		in, want := split(udpTo(client, node, 3000), 800, 7), split(udpTo(client, pod, 3000), 800, 7)
		w.passes(t, "first", w.in, in[0], want[0])
		in = split(udpTo(client, node, 3000), 800, 8)
		if _, err := w.code(hooks()[0].in, in[1].bytes()); err != nil {
			t.Fatal(err)
		}
		w.passes(t, "awaited", w.in, in[0], in[0])
		if code, err := w.code(hooks()[0].in, in[0].bytes()); code != 7 || err != nil {
			t.Errorf("tc returned %d, %v", code, err)
		}
	})
}

// A flood evicts waiting fragments, and nothing else; fragments that waited too long are not
// released.
func TestLateBounds(t *testing.T) {
	eachTC(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":53", true)
		client, node, pod := f.client+":4000", f.node+":30053", f.pod+":53"
		known, want := split(udpTo(client, node, 3000), 800, 1), split(udpTo(client, pod, 3000), 800, 1)
		w.passes(t, "first", w.in, known[0], want[0])
		late := split(udpTo(client, node, 3000), 800, 2)
		w.passes(t, "ahead", w.in, late[1], late[1])
		before := w.dump(t)
		const flood = 10_000
		for id := range uint32(flood) {
			stray := known[1]
			stray.id = 100 + id
			w.run(t, w.in, stray.bytes())
		}
		w.passes(t, "known", w.in, known[1], want[1])
		if have := len(w.waits(t)); have != most || !reflect.DeepEqual(before, w.dump(t)) {
			t.Errorf("%d wait, flows %v", have, w.dump(t))
		}
		if tally := w.tally(t); tally.Kept != flood+1 || tally.Lost != flood+1-most {
			t.Errorf("counted: %+v", tally)
		}
		wanted := split(udpTo(client, pod, 3000), 800, 2)
		w.passes(t, "its first, too late", w.in, late[0], wanted[0])
		old := split(udpTo(client, node, 3000), 800, 4)
		w.passes(t, "long ago", w.in, old[1], old[1])
		w.ageLate(t, 31)
		wanted = split(udpTo(client, pod, 3000), 800, 4)
		w.passes(t, "its first", w.in, old[0], wanted[0])
	})
}

// most is how many fragments can wait at a time.
const most = 256

// ageLate makes waiting fragments older.
func (w *bareNode) ageLate(t *testing.T, ticks uint32) {
	t.Helper()
	for i := range w.maps.EarlySlots.MaxEntries() {
		var row bpf.MapsEarlySlot
		if err := w.maps.EarlySlots.Lookup(i, &row); err != nil {
			t.Fatal(err)
		}
		row.Seen -= ticks
		if err := w.maps.EarlySlots.Put(i, &row); err != nil {
			t.Fatal(err)
		}
	}
}
