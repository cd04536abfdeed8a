package outside

import (
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
)

// The backends learn of a smaller link between the client and the router from the errors that the
// router sends about answers that do not fit.
func TestSmallerLink(t *testing.T) {
	w := newNodesBehindRouter(t, settings{xdp: "off", narrow: 1300, services: true})
	for _, p := range paths() {
		for _, v6 := range []bool{false, true} {
			t.Run(p.name+" "+familyName(v6), func(t *testing.T) { w.follow(t, p, v6, order{Bytes: 1 << 20}) })
		}
	}
	var refused int
	err := w.router.Do(func() error {
		snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
		refused = snmpOf(string(snmp), "Ip:", "FragFails")
		return err
	})
	if err != nil || refused == 0 {
		t.Errorf("the router refused %d packets: %v", refused, err)
	}
}

// An agent that starts takes over what is attached, unnoticed by open connections. When the node of
// a backend goes away, open connections wait for it and new ones go elsewhere.
func TestChanges(t *testing.T) {
	w := newNodesBehindRouter(t, settings{xdp: "off", services: true})
	remote := order{Dial: nodeA.at(false, toPodB), Hold: 1, Bytes: 100}
	before, err := w.user.try(remote)
	if err != nil {
		t.Fatal(err)
	}
	w.onA.process.Kill()
	if got := w.user.do(order{Hold: 1, Bytes: 100}); got != before {
		t.Errorf("without an agent %v answers, before %v", got, before)
	}
	w.onA = w.startNode(0, settings{xdp: "off"})
	if got := w.user.do(order{Hold: 1, Bytes: large}); got != before {
		t.Errorf("with the next agent %v answers, before %v", got, before)
	}
	if state := w.onA.do(nodeOrder{State: true}); len(state.Devices) != 1 || state.Devices[0].TC == "" {
		t.Errorf("devices: %+v", state.Devices)
	}

	w.cut("node2")
	local := podA.at(false, 8080)
	w.onA.do(nodeOrder{Service: &service{At: anyAddr.at(false, toPodB), Kind: maps.NodePort, Backend: local, Local: true}})
	if got := w.user.do(order{Dial: nodeA.at(false, toPodB), Bytes: 100}); got.Server != local || got.Client.Addr() != clientAddr[0] {
		t.Errorf("a new connection: %+v", got)
	}
	if got, err := w.user.try(order{Hold: 1, Bytes: 100, Brief: true}); err == nil {
		t.Errorf("a backend that is gone answers: %+v", got)
	}
}

// A node that gets another address uses it, and NodePorts are open there, without reloading
// programs.
func TestAnotherAddress(t *testing.T) {
	w := newNodesBehindRouter(t, settings{xdp: "off", services: true})
	w.follow(t, paths()[1], false, order{Bytes: 5})
	w.onA.do(nodeOrder{Move: "192.0.2.77/24"})
	moved := family{netip.MustParseAddr("192.0.2.77"), nodeA[1]}
	got := w.user.do(order{Dial: moved.at(false, toPodB), Bytes: 5})
	if got.Client.Addr() != moved[0] || got.Server != podB.at(false, 8080) {
		t.Errorf("after the move: %+v", got)
	}
}

// snmpOf returns a counter of /proc/net/snmp, where a line of names precedes a line of numbers.
func snmpOf(text, group, name string) int {
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != group {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		if at := slices.Index(names, name); at > 0 {
			n, _ := strconv.Atoi(fields[at])
			return n
		}
	}
	return 0
}
