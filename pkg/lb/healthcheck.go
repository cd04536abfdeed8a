package lb

import (
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
func (c *Compiler) healthCheck(service *model.Service, family model.Family, endpoints []*model.Slice) {
	if service.HealthCheckNodePort != 0 {
		c.wanted.Checks = append(c.wanted.Checks, HealthCheck{family, service.HealthCheckNodePort, c.localReady(family, endpoints)})
	}
}

// localReady counts the local endpoints that are ready on any port, even one that the Service does
// not have, as kube-proxy does. A terminating endpoint does not count although it may still get
// traffic: load balancers have to stop sending before it is gone.
func (c *Compiler) localReady(family model.Family, endpoints []*model.Slice) int {
	seen, ready := map[model.Port]bool{}, map[maps.Addr]bool{}
	for _, slice := range endpoints {
		for _, p := range slice.Ports {
			port := model.Port{Name: p.Name, Protocol: p.Protocol}
			if seen[port] {
				continue
			}
			seen[port] = true
			c.gather(&port, family, endpoints)
			for i := range c.candidates {
				if e := &c.candidates[i]; e.local && e.ready() {
					ready[e.backend.Addr] = true
				}
			}
		}
	}
	return len(ready)
}
