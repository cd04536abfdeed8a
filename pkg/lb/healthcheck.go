package lb

import (
	"cmp"
	stdmaps "maps"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// HealthCheck is a node port where load balancers ask whether to send a Service's traffic here, in
// one family.
type HealthCheck struct {
	Family    model.Family
	Port      uint16
	Endpoints int // ready endpoints on this node, each counted once however many ports it has
}

// healthCheck adds the health check of a family, if the Service has one.
func (c *Compiler) healthCheck(service *model.Service, family model.Family) {
	if service.HealthCheckNodePort != 0 && c.mayOpen(service.HealthCheckNodePort) {
		c.wanted.Checks = append(c.wanted.Checks, HealthCheck{family, service.HealthCheckNodePort, c.localReady(family)})
	}
}

// localReady counts the local endpoints that are ready on any port, even one that the Service does
// not have, as kube-proxy does. A terminating endpoint does not count although it may still get
// traffic: load balancers have to stop sending before it is gone. Of ports that the Service does
// not have, no more count than the quota has backends.
func (c *Compiler) localReady(family model.Family) int {
	ready, work := map[maps.Addr]bool{}, 0
	for _, key := range slices.SortedFunc(stdmaps.Keys(c.ports), slicePort.compare) {
		work += c.endpoints(key.name, key.protocol, key.family)
		if key.family != family || c.facts.Quota.Backends != 0 && work > c.facts.Quota.Backends {
			continue
		}
		c.gather(key.name, key.protocol, family)
		for i := range c.candidates {
			if e := &c.candidates[i]; e.local && e.ready() {
				ready[e.backend.Addr] = true
			}
		}
	}
	return len(ready)
}

func (p slicePort) compare(q slicePort) int {
	return cmp.Or(strings.Compare(p.name, q.name), cmp.Compare(p.protocol, q.protocol), cmp.Compare(p.family, q.family))
}
