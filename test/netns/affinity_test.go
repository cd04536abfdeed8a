package netns

import (
	"sync/atomic"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// only returns the single server that served every dial.
func only(t *testing.T, a answer) string {
	t.Helper()
	if len(a.Served) != 1 || len(a.Failed) > 0 {
		t.Fatalf("served %v, failed %v; want one server", a.Served, a.Failed)
	}
	for server := range a.Served {
		return server
	}
	return ""
}

// Round-robin gives every connection another backend, so a client that gets the same one twice has
// affinity.
func TestAffinity(t *testing.T) {
	n := newNode(t)
	index := n.add(service{vip: vip4, algorithm: bpf.MapsAlgorithmALGORITHM_ROUND_ROBIN, backends: back4, affinity: 3600})
	row := &n.Tables().Services[index]
	first, second := newPod(t, n.cgroup), newPod(t, n.cgroup)
	first.listen(back4...)
	second.listen(back4...)
	one, two := only(t, first.do(order{Dial: vip4, Times: 15})), only(t, second.do(order{Dial: vip4, Times: 15}))
	if one == two {
		t.Errorf("two clients in turn got %s", one)
	}

	// Remove the backend from the scope, as when it terminates and others do not.
	tables := n.Tables()
	word := maps.Word(row.Words[maps.ScopeAll])
	setScopes := func(scopes uint8) {
		for i := range uint32(word.Len()) {
			backend := &tables.Backends[maps.SlotBackend(tables.Slots[word.Off()+i])]
			if maps.BackendAddrPort(*backend).String() == one {
				atomic.StoreUint32(&backend.Owner, maps.MakeOwner(index, scopes))
			}
		}
	}
	setScopes(0)
	moved := only(t, first.do(order{Dial: vip4}))
	if moved == one {
		t.Error("a client kept a backend that its service no longer has")
	}
	if again := only(t, first.do(order{Dial: vip4, Times: 15})); again != moved {
		t.Errorf("a client moved from %s to %s and on to %s", one, moved, again)
	}
	if got := only(t, second.do(order{Dial: vip4})); got != two {
		t.Errorf("the other client moved from %s to %s", two, got)
	}

	row.AffinitySeconds = 0
	if a := second.do(order{Dial: vip4, Times: 8}); len(a.Served) != len(back4) {
		t.Errorf("without affinity: served %v", a.Served)
	}
	row.AffinitySeconds = 3600
	if got := only(t, second.do(order{Dial: vip4})); got != two {
		t.Errorf("with affinity again: %s, want the remembered %s", got, two)
	}
	setScopes(1 << maps.ScopeAll)
	// In another epoch nobody is remembered: the next in turn is not the backend of before, and
	// whichever it is, it is kept.
	for range len(back4) {
		row.AffinityEpoch++
		at := only(t, second.do(order{Dial: vip4}))
		if at == two {
			t.Errorf("in epoch %d: still %s", row.AffinityEpoch, two)
		}
		if again := only(t, second.do(order{Dial: vip4, Times: 15})); again != at {
			t.Errorf("in epoch %d: %s, then %s", row.AffinityEpoch, at, again)
		}
		two = at
	}
}

// The timeout runs from the last new connection. The test follows the clock of the BPF programs:
// what counts is the time that passed between two connections on that clock.
func TestAffinityTimeout(t *testing.T) {
	n := newNode(t)
	n.add(service{vip: vip4, algorithm: bpf.MapsAlgorithmALGORITHM_ROUND_ROBIN, backends: back4, affinity: 1})
	p := newPod(t, n.cgroup)
	p.listen(back4...)
	const tick = 10 * time.Millisecond // the clock read here may be a tick ahead of the one a program reads
	at := rig.Coarse(t)
	server := only(t, p.do(order{Dial: vip4}))
	ended := rig.Coarse(t)
	for _, pause := range []time.Duration{300, 300, 300, 300, 300, 1050, 300, 1050} {
		time.Sleep(pause * time.Millisecond)
		before, after := at, ended // the previous connection was made between these two
		at = rig.Coarse(t)
		got := only(t, p.do(order{Dial: vip4}))
		ended = rig.Coarse(t)
		switch {
		case ended-before < time.Second-tick && got != server:
			t.Errorf("moved from %s to %s within %v", server, got, ended-before)
		case at-after > time.Second+tick && got == server:
			t.Errorf("still %s after %v", got, at-after)
		}
		server = got
	}
}
