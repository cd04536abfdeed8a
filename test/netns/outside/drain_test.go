package outside

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/flowtable"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
)

// drained is two nodes on their way back to kube-proxy's rules; the front node forwards to a pod of
// the other, which answers its clients directly.
type drained struct {
	*nodesBehindRouter
	xdp      string
	services []service // as node a has them
	user     *child[order, seen]
}

// TestDrain checks that connections with direct server return survive while both nodes are drained,
// in either order, that new connections go by the rules, and that the drain notices when the old
// ones have ended.
func TestDrain(t *testing.T) {
	needNFT(t)
	for _, mode := range []lb.Direct{lb.DirectIPIP, lb.DirectGeneve, lb.DirectOpt} {
		for _, xdp := range []string{"off", "native"} {
			t.Run(fmt.Sprintf("%s xdp %s", mode, xdp), func(t *testing.T) { newDrained(t, mode, xdp).goBack() })
		}
	}
}

func newDrained(t *testing.T, mode lb.Direct, xdp string) *drained {
	t.Helper()
	d := &drained{xdp: xdp, nodesBehindRouter: newNodesBehindRouter(t, settings{xdp: xdp})}
	d.nft(proxyRules)
	d.user = d.process(d.client)
	for _, v6 := range []bool{false, true} {
		backend := podB.at(v6, 8080)
		d.process(d.pods[1]).do(order{Serve: backend})
		for i, node := range []*child[nodeOrder, nodeState]{d.onA, d.onB} {
			node.do(nodeOrder{Service: &service{At: anyAddr.at(v6, toPodB), Kind: maps.NodePort, Backend: backend, Local: i == 1, Direct: mode}})
		}
		d.services = append(d.services, service{At: anyAddr.at(v6, toPodB), Kind: maps.NodePort, Backend: backend, Direct: mode})
	}
	return d
}

func (d *drained) goBack() {
	d.t.Helper()
	d.open("with agents", 1, true)
	d.goOn("with agents", 1)
	d.onA.process.Kill()
	d.onB.process.Kill()
	onB := d.begin(1)
	d.goOn("with the backend's node drained", 1)
	d.open("by a node that is not drained, to one that is", 3, true)
	onA := d.begin(0)
	d.open("when both are drained", 5, false)
	d.allGoOn("with both nodes drained")
	if err := onA.Close(); err != nil {
		d.t.Fatal(err)
	}
	d.again()
	d.allGoOn("with another agent in front")
	d.open("with another agent in front", 7, true)
	d.onA.process.Kill()
	onA = d.begin(0)
	d.allGoOn("with the node in front drained again")
	const all, datagrams = 2 * 3 * 2, 2 * 3 // of two families, opened three times, by TCP and UDP
	for node, want := range map[*flowtable.Drain]flowtable.Stuck{onA: {Direct: all}, onB: {Forwarded: all}} {
		if left, err := node.Stuck(); err != nil || left != want {
			d.t.Errorf("a node still waits for %+v, %v; want %+v", left, err, want)
		}
	}
	for _, number := range []int{1, 2, 3, 4, 7, 8} {
		d.user.do(order{Hold: number, End: true})
	}
	d.await(onA, datagrams)
	d.await(onB, datagrams)
	if err := errors.Join(onA.Close(), onB.Close()); err != nil {
		d.t.Error(err)
	}
	d.clean()
	d.goOn("when both are clean", 5)
}

// allGoOn checks that everything that was opened before both nodes were drained, and since, still
// works.
func (d *drained) allGoOn(when string) {
	d.t.Helper()
	for _, number := range []int{1, 3, 5} {
		d.goOn(when, number)
	}
}

// again starts an agent on the front node once more, while nodes are drained.
func (d *drained) again() {
	d.t.Helper()
	d.onA = d.startNode(0, settings{xdp: d.xdp})
	d.onA.do(nodeOrder{Ready: d.services})
	for _, s := range d.services {
		d.onA.do(nodeOrder{Service: &s})
	}
}

// open has clients open a TCP connection and send a datagram in each family, and keep both:
// connections from the given number on, datagrams from ten times that. direct says which client
// address the backend should see.
func (d *drained) open(when string, number int, direct bool) {
	d.t.Helper()
	for i, v6 := range []bool{false, true} {
		for _, udp := range []bool{false, true} {
			hold := number + i
			if udp {
				hold *= 10
			}
			got, err := d.user.try(order{Dial: nodeA.at(v6, toPodB), UDP: udp, Hold: hold, Bytes: 100})
			want := nodeA
			if direct {
				want = clientAddr
			}
			if err != nil || got.Client.Addr() != want.at(v6, 0).Addr() {
				d.t.Errorf("%s %s, UDP %t: %+v, %v; want a client at %s", when, familyName(v6), udp, got, err, want.at(v6, 0).Addr())
			}
		}
	}
}

// goOn checks that what was opened still works.
func (d *drained) goOn(when string, number int) {
	d.t.Helper()
	for i, v6 := range []bool{false, true} {
		for hold, bytes := range map[int]int{number + i: 1 << 20, 10 * (number + i): 1200} {
			if _, err := d.user.try(order{Hold: hold, Bytes: bytes}); err != nil {
				d.t.Errorf("%s %s, number %d: %v", when, familyName(v6), hold, err)
			}
		}
	}
}

// begin starts draining a node.
func (d *drained) begin(i int) *flowtable.Drain {
	d.t.Helper()
	node, err := flowtable.NewDrain(datapath.MapsDir(d.nodes[i].bpffs), 0)
	if err == nil {
		err = node.CloseFrontends()
	}
	if err == nil {
		err = node.CloseFrontends() // again, as after an interruption
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return node
}

// await waits until a node has the given number of stuck flows left.
func (d *drained) await(node *flowtable.Drain, n int) {
	d.t.Helper()
	late := time.After(patience)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		left, err := node.Stuck()
		if err != nil || left.All() == n {
			if err != nil {
				d.t.Error(err)
			}
			return
		}
		select {
		case <-look.C:
		case <-late:
			d.t.Errorf("%d flows are left; want %d", left.All(), n)
			return
		}
	}
}

// clean removes what is left on both nodes.
func (d *drained) clean() {
	d.t.Helper()
	for _, n := range d.nodes {
		err := n.Do(func() error {
			over, err := datapath.Cleanup(n.bpffs)
			if err == nil {
				err = over.Left
			}
			return err
		})
		if err != nil {
			d.t.Error(err)
		}
	}
}
