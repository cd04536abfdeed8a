package main

import (
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/netfilter"
)

// keeper asks netfilter about datagrams that were a former proxy's when the agent came.
type keeper struct{ finder *netfilter.Finder } // nil until there is somebody to ask

// ask finds a flow by what its client sends, and by what its server answers: it has rows for both.
func (k *keeper) ask(flow maps.Flow) (maps.Peer, bool, error) {
	if k.finder == nil {
		finder, err := netfilter.NewFinder()
		if finder == nil {
			return maps.Peer{}, false, err
		}
		k.finder = finder
	}
	from, to := maps.FlowSource(flow), maps.FlowDestination(flow)
	c, ok, err := k.finder.Find(flow.Proto, from, to)
	if err == nil && !ok {
		c, ok, err = k.finder.Find(flow.Proto, to, from)
	}
	if err != nil || !ok {
		return maps.Peer{}, false, err
	}
	return maps.PeerOf(maps.SockPeer{
		Vip: maps.AddrOf(c.Dialled.Addr()), VipPort: maps.PortOf(c.Dialled.Port()),
		Backend: maps.AddrOf(c.Server.Addr()), BackendPort: maps.PortOf(c.Server.Port()),
	}, model.Protocol(flow.Proto)), true, nil
}

// close lets go of the records.
func (k *keeper) close() {
	if k.finder != nil {
		k.finder.Close()
	}
}
