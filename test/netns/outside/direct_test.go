package outside

import (
	"errors"
	"fmt"
	"testing"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

const toDirect = 30500

// host lets other nodes forward to a backend on this one, as the agent does for every service that
// is reachable from outside.
func (a *agent) host(s service, index uint32) error {
	if !s.Local || s.Direct == lb.DirectOff {
		return nil
	}
	row := maps.Svc{Service: index, Kind: maps.Hosted}
	table := a.Tables().Svcs
	return errors.Join(
		table.Update(maps.HostedAddrKey(s.Backend.Addr()), row),
		table.Update(maps.FrontendAddrKey(maps.AddrOf(s.At.Addr())), row),
		table.Update(maps.HostedKey(s.Backend, index), row))
}

// TestDirect checks that a pod on another node answers a client directly, in every encapsulation,
// and that packets of every size arrive: small ones, those that fill a link, and those that the
// kernel merges and segments again.
func TestDirect(t *testing.T) {
	rig.Root(t)
	for _, mode := range []lb.Direct{lb.DirectIPIP, lb.DirectGeneve, lb.DirectOpt} {
		for _, s := range []settings{
			{xdp: "off"}, {xdp: "off", sums: true}, {xdp: "native"}, {xdp: "off", mtu: 9000, sums: true}, {xdp: "native", mtu: 9000},
		} {
			t.Run(fmt.Sprintf("%s xdp %s mtu %d sums left %t", mode, s.xdp, s.mtu, s.sums), func(t *testing.T) { direct(t, mode, s) })
		}
	}
}

func direct(t *testing.T, mode lb.Direct, s settings) {
	w := newNodesBehindRouter(t, s)
	for _, v6 := range []bool{false, true} {
		backend := podB.at(v6, 8080)
		w.process(w.pods[1]).do(order{Serve: backend})
		for i, node := range []*child[nodeOrder, nodeState]{w.onA, w.onB} {
			node.do(nodeOrder{Service: &service{At: anyAddr.at(v6, toDirect), Kind: maps.NodePort, Backend: backend, Local: i == 1, Direct: mode}})
		}
		t.Run(familyName(v6), func(t *testing.T) {
			p := path{"pod of another node", toDirect, true, podB, 8080}
			w.follow(t, p, v6, order{Bytes: 5})
			w.follow(t, p, v6, order{Bytes: 4 << 20})
			w.follow(t, p, v6, order{UDP: true, Bytes: 5})
			w.follow(t, p, v6, order{UDP: true, Bytes: 1200, NoSum: true})
			if drops := w.onB.do(nodeOrder{State: true}).Drops; len(drops) > 0 {
				t.Errorf("the backend's node counted %v", drops)
			}
		})
	}
}
