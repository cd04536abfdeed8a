package oracle

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"
	netutils "k8s.io/utils/net"
)

// coverage counts the states in which each interesting thing occurred. What is not counted was not
// compared.
type coverage struct {
	counts map[string]int64
	combos [3][3][3]string // of an endpoint's conditions: ready, serving, terminating
	inside map[string]bool // what occurred in the current state
}

func newCoverage() *coverage {
	c := &coverage{counts: map[string]int64{}, inside: map[string]bool{}}
	words := [3]string{"unset", "true", "false"}
	for _, name := range classes() {
		c.counts[name] = 0
	}
	for i, ready := range words {
		for j, serving := range words {
			for k, terminating := range words {
				name := fmt.Sprintf("condition: ready %s, serving %s, terminating %s", ready, serving, terminating)
				c.combos[i][j][k] = name
				c.counts[name] = 0
			}
		}
	}
	return c
}

// classes lists what must occur, besides the combinations of conditions.
func classes() []string {
	return []string{
		"type: ClusterIP", "type: NodePort", "type: LoadBalancer", "type: ExternalName", "type: ExternalName with a ClusterIP",
		"type: headless", "type: no node ports allocated", "type: some node ports allocated",
		"label: service of another proxy", "label: service called headless", "label: slice of another proxy", "label: slice called headless",
		"family: IPv4", "family: IPv6", "family: both", "family: not said", "family: fewer addresses than families",
		"protocol: TCP", "protocol: UDP", "protocol: SCTP", "protocol: one name for two",
		"policy: both cluster", "policy: internal local", "policy: external local", "policy: both local",
		"policy: external local without access from outside", "policy: outside in one family only",
		"policy: local endpoints alone", "policy: never local",
		"affinity: none", "affinity: client", "affinity: timeout without affinity", "health check: port", "health check: endpoints",
		"outside: external IPs", "outside: external IP that is none", "outside: load balancer VIP", "outside: load balancer as proxy",
		"outside: load balancer by name", "outside: VIP that is an external IP", "outside: load balancer left over",
		"outside: source ranges", "outside: source ranges open to all", "outside: source range that is none",
		"text: sloppy IPv4", "text: unusual IPv6", "text: mapped IPv4",
		"slices: none", "slices: several of a family", "slices: of host names", "slices: of another service", "slices: of no service",
		"slices: different numbers for one port name", "slices: port of another protocol", "slices: port without name",
		"slices: port without number", "slices: port 0", "slices: endpoint without address",
		"duplicate: in one slice", "duplicate: in two slices", "duplicate: one terminates",
		"node: none", "node: this", "node: another", "node: no zone",
		"hints: none", "hints: empty", "hints: zones", "hints: nodes", "hints: both", "hints: several zones",
		"topology: by node", "topology: by zone", "topology: by zone because no node hint fits", "topology: hints on some only",
		"topology: hints for others only", "topology: zone hints without a zone here",
		"choice: no endpoints", "choice: ready", "choice: draining", "choice: endpoints but none usable", "choice: local ready",
		"choice: local draining", "choice: local draining while others are ready", "choice: nothing local",
		"history: service kept, slices changed", "history: slices kept, service changed",
	}
}

func (c *coverage) hit(class string) { c.inside[class] = true }

func (c *coverage) hitIf(condition bool, class string) {
	if condition {
		c.hit(class)
	}
}

// close ends the current state and counts what occurred in it.
func (c *coverage) close() {
	for class := range c.inside {
		c.counts[class]++
	}
	clear(c.inside)
}

func (c *coverage) add(o *coverage) {
	for class, n := range o.counts {
		c.counts[class] += n
	}
}

// missing returns the classes that never occurred.
func (c *coverage) missing() []string {
	var out []string
	for _, class := range slices.Sorted(maps.Keys(c.counts)) {
		if c.counts[class] == 0 {
			out = append(out, class)
		}
	}
	return out
}

// String lists the counts.
func (c *coverage) String() string {
	var out strings.Builder
	for _, class := range slices.Sorted(maps.Keys(c.counts)) {
		fmt.Fprintf(&out, "%10d  %s\n", c.counts[class], class)
	}
	return out.String()
}

// choice notes what kube-proxy chose for one port.
func (c *coverage) choice(on node, info proxy.ServicePort, endpoints, all, local []proxy.Endpoint) {
	ready := slices.DeleteFunc(slices.Clone(endpoints), func(e proxy.Endpoint) bool { return !e.IsReady() })
	c.hitIf(len(endpoints) == 0, "choice: no endpoints")
	c.hitIf(len(endpoints) > 0 && len(all)+len(local) == 0, "choice: endpoints but none usable")
	c.hitIf(!info.UsesClusterEndpoints(), "policy: local endpoints alone")
	c.hitIf(!info.UsesLocalEndpoints(), "policy: never local")
	c.hitIf(info.ExternalPolicyLocal() && !info.ExternallyAccessible(), "policy: external local without access from outside")
	if info.UsesClusterEndpoints() && len(all) > 0 {
		c.hitIf(len(ready) > 0, "choice: ready")
		c.hitIf(len(ready) == 0, "choice: draining")
	}
	if info.UsesLocalEndpoints() && len(endpoints) > 0 {
		c.hitIf(len(local) == 0, "choice: nothing local")
		c.hitIf(len(local) > 0 && local[0].IsReady(), "choice: local ready")
		draining := len(local) > 0 && !local[0].IsReady()
		c.hitIf(draining, "choice: local draining")
		c.hitIf(draining && len(ready) > 0, "choice: local draining while others are ready")
	}
	if info.UsesClusterEndpoints() && len(ready) > 0 {
		c.topology(on, ready, all)
	}
}

func (c *coverage) topology(on node, ready, all []proxy.Endpoint) {
	every := func(list []proxy.Endpoint, holds func(proxy.Endpoint) bool) bool {
		return !slices.ContainsFunc(list, func(e proxy.Endpoint) bool { return !holds(e) })
	}
	nodes := func(e proxy.Endpoint) bool { return e.NodeHints().Len() > 0 }
	zones := func(e proxy.Endpoint) bool { return e.ZoneHints().Len() > 0 }
	here := func(e proxy.Endpoint) bool { return e.NodeHints().Has(on.name) }
	narrowed := len(all) < len(ready)
	hinted := slices.ContainsFunc(ready, nodes) || slices.ContainsFunc(ready, zones)
	c.hitIf(narrowed && every(ready, nodes) && every(all, here), "topology: by node")
	c.hitIf(narrowed && !every(ready, nodes), "topology: by zone")
	c.hitIf(narrowed && every(ready, nodes) && !slices.ContainsFunc(ready, here), "topology: by zone because no node hint fits")
	c.hitIf(!narrowed && hinted && !every(ready, nodes) && !every(ready, zones), "topology: hints on some only")
	c.hitIf(!narrowed && (every(ready, nodes) || every(ready, zones)) &&
		every(ready, func(e proxy.Endpoint) bool { return !here(e) && !e.ZoneHints().Has(on.zone) }), "topology: hints for others only")
	c.hitIf(on.zone == "" && every(ready, zones), "topology: zone hints without a zone here")
}

// state notes what is interesting about the objects.
func (c *coverage) state(on node, s, before *state) {
	c.hitIf(on.zone == "", "node: no zone")
	if before != nil {
		c.hitIf(s.service == before.service && !slices.Equal(s.slices, before.slices), "history: service kept, slices changed")
		c.hitIf(s.service != before.service && len(s.slices) > 0 && slices.Equal(s.slices, before.slices), "history: slices kept, service changed")
	}
	c.service(s.service)
	c.hitIf(len(s.slices) == 0, "slices: none")
	seen := map[string]occurrence{}
	for i, slice := range s.slices {
		c.slice(slice, s.service)
		c.among(slice, s.slices[:i])
		for j := range slice.Endpoints {
			c.endpoint(&slice.Endpoints[j], on)
			if len(slice.Endpoints[j].Addresses) > 0 && slice.AddressType != discoveryv1.AddressTypeFQDN {
				c.duplicate(s, seen, occurrence{i, j})
			}
		}
	}
}

func (c *coverage) duplicate(s *state, seen map[string]occurrence, o occurrence) {
	key := canonical(s.at(o).Addresses[0])
	if first, found := seen[key]; found {
		c.hitIf(first.slice == o.slice, "duplicate: in one slice")
		c.hitIf(first.slice != o.slice && collide(s.slices[first.slice], s.slices[o.slice]), "duplicate: in two slices")
		c.hitIf(running(s.at(first)) != running(s.at(o)), "duplicate: one terminates")
		return
	}
	seen[key] = o
}

func (c *coverage) text(addr string) {
	if canonical(addr) == addr {
		return
	}
	switch {
	case strings.Contains(addr, "ffff:"):
		c.hit("text: mapped IPv4")
	case netutils.IsIPv6String(addr):
		c.hit("text: unusual IPv6")
	case netutils.IsIPv4String(addr):
		c.hit("text: sloppy IPv4")
	}
}

func tristate(b *bool) int {
	switch {
	case b == nil:
		return 0
	case *b:
		return 1
	}
	return 2
}

func (c *coverage) endpoint(e *discoveryv1.Endpoint, on node) {
	c.hit(c.combos[tristate(e.Conditions.Ready)][tristate(e.Conditions.Serving)][tristate(e.Conditions.Terminating)])
	c.hitIf(len(e.Addresses) == 0, "slices: endpoint without address")
	for _, addr := range e.Addresses {
		c.text(addr)
	}
	switch {
	case e.NodeName == nil:
		c.hit("node: none")
	case *e.NodeName == on.name:
		c.hit("node: this")
	default:
		c.hit("node: another")
	}
	switch h := e.Hints; {
	case h == nil:
		c.hit("hints: none")
	case len(h.ForZones)+len(h.ForNodes) == 0:
		c.hit("hints: empty")
	case len(h.ForNodes) == 0:
		c.hit("hints: zones")
		c.hitIf(len(h.ForZones) > 1, "hints: several zones")
	case len(h.ForZones) == 0:
		c.hit("hints: nodes")
	default:
		c.hit("hints: both")
	}
}

func (c *coverage) slice(slice *discoveryv1.EndpointSlice, service *corev1.Service) {
	_, foreign := slice.Labels[labelProxyName]
	c.hitIf(foreign, "label: slice of another proxy")
	c.hitIf(!watchesSlice(slice), "label: slice called headless")
	owner := slice.Labels[discoveryv1.LabelServiceName]
	c.hitIf(owner == "", "slices: of no service")
	c.hitIf(owner == "stranger", "slices: of another service")
	c.hitIf(slice.AddressType == discoveryv1.AddressTypeFQDN, "slices: of host names")
	for _, port := range slice.Ports {
		switch {
		case port.Name == nil:
			c.hit("slices: port without name")
		case port.Port == nil:
			c.hit("slices: port without number")
		case *port.Port == 0:
			c.hit("slices: port 0")
		default:
			other := slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == *port.Name })
			same := slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
				return p.Name == *port.Name && p.Protocol == *port.Protocol
			})
			c.hitIf(other && !same, "slices: port of another protocol")
		}
	}
}

// among compares a slice with the others.
func (c *coverage) among(slice *discoveryv1.EndpointSlice, others []*discoveryv1.EndpointSlice) {
	for _, other := range others {
		if other.AddressType != slice.AddressType || len(other.Endpoints)*len(slice.Endpoints) == 0 {
			continue
		}
		c.hit("slices: several of a family")
		for _, a := range slice.Ports {
			for _, b := range other.Ports {
				if a.Name != nil && b.Name != nil && a.Port != nil && b.Port != nil && *a.Name == *b.Name {
					c.hitIf(*a.Protocol == *b.Protocol && *a.Port != *b.Port && *a.Port**b.Port != 0, "slices: different numbers for one port name")
				}
			}
		}
	}
}
