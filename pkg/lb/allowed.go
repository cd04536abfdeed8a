package lb

import (
	"net/netip"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Allowed is the set of backends that may keep their existing connections, for one port of a Service
// in one family. It is larger than the set that gets new connections: an endpoint that drains, or
// that is not for this node, is in no table but still answers.
type Allowed struct {
	backends map[maps.Backend]struct{} // of a UDP service
	addrs    map[maps.Addr]struct{}    // of any other service
}

// Has reports whether a backend may keep its connections.
func (k *Allowed) Has(backend maps.Backend) bool {
	if k.backends == nil {
		_, ok := k.addrs[backend.Addr]
		return ok
	}
	_, ok := k.backends[backend]
	return ok
}

// Allowed returns the backends of a Service's port that may keep their connections.
//
// A UDP client does not notice that its backend stopped answering, so an endpoint has to be serving
// on that very port, which is also kube-proxy's rule for the flows it tracks. A stream finds out by
// itself and has more to lose, so its endpoint counts as long as it is listed at all, on whatever
// port and in whatever condition.
func (c *Compiler) Allowed(id ID, endpoints []*model.Slice) *Allowed {
	if id.Protocol == model.UDP {
		c.index(endpoints)
		c.gather(id.Port, id.Protocol, id.Family)
		k := &Allowed{backends: make(map[maps.Backend]struct{}, len(c.candidates))}
		for i := range c.candidates {
			if e := &c.candidates[i]; e.keepsConnections() {
				k.backends[e.backend] = struct{}{}
			}
		}
		return k
	}
	k := &Allowed{addrs: map[maps.Addr]struct{}{}}
	for _, slice := range endpoints {
		if slice.Family != id.Family {
			continue
		}
		for i := range slice.Endpoints {
			k.addrs[maps.AddrOf(slice.Endpoints[i].Addr)] = struct{}{}
		}
	}
	return k
}

// keepsConnections reports whether the endpoint may keep its existing connections.
func (c *candidate) keepsConnections() bool {
	return model.Protocol(c.backend.Proto) != model.UDP || c.conditions&(model.Ready|model.Serving) != 0
}

// allowedSum is a checksum that changes whenever a backend of the port comes or goes for good. Two
// sets might collide; then a backend that left is noticed a little later.
func (c *Compiler) allowedSum() (sum uint64) {
	const prime = 1099511628211
	for i := range c.candidates {
		e := &c.candidates[i]
		if !e.keepsConnections() {
			continue
		}
		hash := uint64(e.backend.Port)
		for _, word := range e.backend.Addr.Word {
			hash = (hash ^ uint64(word)) * prime
		}
		sum += hash ^ hash>>29
	}
	return sum
}

// AllowedByPod returns the backends of a pod's host ports that may keep their connections: its
// addresses, while it exists.
func AllowedByPod(addrs []netip.Addr) *Allowed {
	k := &Allowed{addrs: map[maps.Addr]struct{}{}}
	for _, addr := range addrs {
		k.addrs[maps.AddrOf(addr)] = struct{}{}
	}
	return k
}
