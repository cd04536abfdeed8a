package connections

import (
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/netfilter"
)

// netfilterFlows asks netfilter about UDP flows that another proxy translated before the agent came.
type netfilterFlows struct{ finder *netfilter.Finder } // nil until netfilter tracks connections

// ask looks up a flow by both of its directions, because a flow has a row for what the client sends
// and one for what the server answers.
func (k *netfilterFlows) ask(flow maps.Flow) (maps.Origin, bool, error) {
	if k.finder == nil {
		finder, err := netfilter.NewFinder()
		if finder == nil {
			return maps.Origin{}, false, err
		}
		k.finder = finder
	}
	from, to := maps.FlowSource(flow), maps.FlowDestination(flow)
	c, ok, err := k.finder.Find(flow.Proto, from, to)
	if err == nil && !ok {
		c, ok, err = k.finder.Find(flow.Proto, to, from)
	}
	if err != nil || !ok {
		return maps.Origin{}, false, err
	}
	return maps.OriginOf(maps.SockOrigin{
		Vip: maps.AddrOf(c.Dialed.Addr()), VipPort: maps.PortOf(c.Dialed.Port()),
		Backend: maps.AddrOf(c.Server.Addr()), BackendPort: maps.PortOf(c.Server.Port()),
	}, model.Protocol(flow.Proto)), true, nil
}

// close releases the finder.
func (k *netfilterFlows) close() {
	if k.finder != nil {
		k.finder.Close()
	}
}
