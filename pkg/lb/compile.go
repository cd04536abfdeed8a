// Package lb turns one object into the rows that it wants in the maps. The result is a pure
// function of the object, its slices and a few facts about the node: it uses no history, clock or
// map.
package lb

import (
	"fmt"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// ExternalIPs says how spec.externalIPs are treated.
type ExternalIPs string

// The modes of externalIPs.
const (
	ExternalIPsAll  ExternalIPs = "all"           // reachable from everywhere
	ExternalIPsOnly ExternalIPs = "external-only" // reachable from outside the cluster, not from its own clients
	ExternalIPsDeny ExternalIPs = "deny"
)

// ParseExternalIPs returns the mode of that name.
func ParseExternalIPs(name string) (ExternalIPs, error) {
	switch mode := ExternalIPs(name); mode {
	case ExternalIPsAll, ExternalIPsOnly, ExternalIPsDeny:
		return mode, nil
	}
	return "", fmt.Errorf("unknown mode %q for external IPs: use all, external-only or deny", name)
}

// Facts are what an object's rows depend on besides the object itself.
type Facts struct {
	Node        *model.Node // this node
	Algorithm   Algorithm   // for Services that name none
	ExternalIPs ExternalIPs
	Direct      Direct // for Services that name no mode
	// AcceptDirect is true if other nodes may forward packets to backends here, to be answered directly.
	AcceptDirect bool
	VIPPing      bool // addresses of Services get the row that makes them answer pings
	// RuntimePorts is true if the container runtime reports all host ports. Those of Pods are then
	// ignored, since they come later than the pod and stay longer.
	RuntimePorts bool
	// Reserved says why an address may not be an externalIP, or returns "".
	Reserved func(netip.Addr) string
	// IsNode reports whether an address is a node's: nothing of a Service may reach the tunnel there.
	IsNode func(netip.Addr) bool
	// MayUncheck reports whether a namespace lets its pods send from foreign addresses.
	MayUncheck func(namespace string) bool
	// Proxies names the proxies that pods may have their connections handed to. It is nil if
	// another CNI plugin provides the pod network.
	Proxies []string
	// Local reports whether an interface of this node has an address. A local ClusterIP is left
	// alone, since something on the node answers there, such as a DNS cache. A local endpoint is on
	// this node. A hostIP must be local.
	Local func(netip.Addr) bool
}

// ID names one BPF service: one port of one object in one family.
type ID struct {
	model.Key
	Port     string // the port's name, or hostIP:port of a host port
	Protocol model.Protocol
	Family   model.Family
}

// String returns the name as stored in the maps and shown to users: "shop/web:http/tcp4".
func (id ID) String() string {
	port := ""
	if id.Port != "" {
		port = ":" + id.Port
	}
	return fmt.Sprintf("%s%s/%s%d", id.Key, port, id.Protocol, id.Family)
}

// Frontend is a row of the svcs map without the index of its service.
type Frontend struct {
	Key  maps.SvcKey
	Kind uint32
}

// Service is the content of one BPF service. Tables hold one position in Backends per slot.
type Service struct {
	ID              ID
	Frontends       []Frontend
	Backends        []maps.Backend // of both scopes, sorted, without duplicates
	Tables          [maps.Scopes][]uint32
	Algorithm       Algorithm
	Flags           uint8
	AffinitySeconds uint32
	// SourceRanges are the clients allowed at its load balancer addresses, sorted. They are set
	// only together with the flag of that name.
	SourceRanges []netip.Prefix
	// KeptSum changes when the result of Compiler.Kept does. It is 0 without backends.
	KeptSum uint64
}

// Wanted is everything that one object wants in the maps, and the health checks that load balancers
// ask for.
type Wanted struct {
	Services []Service
	Checks   []HealthCheck
	Problems []model.Problem
}

func (w *Wanted) problem(reason, format string, args ...any) {
	w.Problems = append(w.Problems, model.Problem{Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// Compiler compiles one object after another. It reuses buffers between calls: a result is valid
// until the next call.
type Compiler struct {
	facts      Facts
	wanted     Wanted
	candidates []candidate
	scopes     [maps.Scopes][]Weighted
	positions  []uint32
}

// NewCompiler returns a Compiler for the node that facts describe.
func NewCompiler(facts Facts) *Compiler { return &Compiler{facts: facts} }

// SetNode replaces the Compiler's view of this node.
func (c *Compiler) SetNode(node *model.Node) { c.facts.Node = node }

func (c *Compiler) reset() *Wanted {
	c.wanted.Services, c.wanted.Checks, c.wanted.Problems = c.wanted.Services[:0], c.wanted.Checks[:0], nil
	return &c.wanted
}

// Service compiles a Service with its slices.
func (c *Compiler) Service(service *model.Service, endpoints []*model.Slice) *Wanted {
	wanted := c.reset()
	wanted.Problems = append(wanted.Problems, service.Problems...)
	for _, slice := range endpoints {
		wanted.Problems = append(wanted.Problems, slice.Problems...)
	}
	algorithm := c.algorithm(service, wanted)
	external := c.externalIPs(service, wanted)
	direct := c.direct(service, wanted)
	left := maxFrontends
	for _, family := range families(service, endpoints) {
		ranges := c.rangesOf(service, family)
		for i := range service.Ports {
			if left <= 0 {
				wanted.problem("TooManyFrontends",
					"IPv%d port %d and those after it are ignored: addresses times ports can be %d, use more Services",
					family, service.Ports[i].Port, maxFrontends)
				return wanted
			}
			left -= c.port(service, &service.Ports[i], family, external, algorithm, endpoints)
			s := &wanted.Services[len(wanted.Services)-1]
			s.guard(ranges)
			if c.facts.AcceptDirect && s.outside() {
				s.host(direct)
			}
		}
		c.healthCheck(service, family, endpoints)
	}
	return wanted
}

// maxFrontends bounds how much of the shared map one Service can take.
const maxFrontends = 1 << 16

func (c *Compiler) algorithm(service *model.Service, wanted *Wanted) Algorithm {
	if service.Algorithm == "" {
		return c.facts.Algorithm
	}
	algorithm, err := ParseAlgorithm(service.Algorithm)
	if err != nil {
		wanted.problem("UnsupportedAlgorithm", "annotation fairlead.io/algorithm: %v; using %s", err, c.facts.Algorithm)
		return c.facts.Algorithm
	}
	return algorithm
}

// externalIPs returns the Service's externalIPs that it is allowed to have.
func (c *Compiler) externalIPs(service *model.Service, wanted *Wanted) []netip.Addr {
	if len(service.ExternalIPs) == 0 {
		return nil
	}
	if c.facts.ExternalIPs == ExternalIPsDeny {
		wanted.problem("ExternalIPsDenied", "externalIPs are ignored: the agent runs with --external-ips=deny")
		return nil
	}
	var allowed []netip.Addr
	for _, addr := range service.ExternalIPs {
		if why := c.facts.Reserved(addr); why != "" {
			wanted.problem("ExternalIPReserved", "externalIP %s is ignored: it is %s", addr, why)
			continue
		}
		allowed = append(allowed, addr)
	}
	return allowed
}

// families returns the families that a Service is served in: those of its ClusterIPs, as in
// kube-proxy. A Service from a file may have no ClusterIP. Then its other addresses decide, and its
// endpoints if it has only node ports.
func families(service *model.Service, endpoints []*model.Slice) []model.Family {
	addrs := service.ClusterIPs
	if len(addrs) == 0 {
		addrs = slices.Concat(service.ExternalIPs, service.LoadBalancerIPs)
	}
	var list []model.Family
	add := func(family model.Family) {
		if !slices.Contains(list, family) {
			list = append(list, family)
		}
	}
	for _, addr := range addrs {
		add(model.FamilyOf(addr))
	}
	if len(addrs) == 0 && slices.ContainsFunc(service.Ports, func(p model.Port) bool { return p.NodePort != 0 }) {
		for _, slice := range endpoints {
			add(slice.Family)
		}
		slices.Sort(list)
	}
	return list
}

// port compiles one port in one family and returns the number of its frontends.
func (c *Compiler) port(service *model.Service, port *model.Port, family model.Family, external []netip.Addr,
	algorithm Algorithm, endpoints []*model.Slice) int {
	s := c.grow()
	s.ID = ID{Key: model.Key{Kind: model.KindService, Name: service.Name}, Port: port.Name, Protocol: port.Protocol, Family: family}
	s.AffinitySeconds = service.AffinitySeconds
	s.Algorithm = algorithm
	if service.InternalLocal {
		s.Flags |= maps.InternalLocal
	}
	if service.ExternalLocal {
		s.Flags |= maps.ExternalLocal
	}
	add := func(addrs []netip.Addr, kind uint32) {
		for _, addr := range addrs {
			if model.FamilyOf(addr) == family && (kind != maps.ClusterIP || !c.local(addr)) {
				s.frontend(maps.KeyOf(addr, port.Port, port.Protocol), kind)
				if c.facts.VIPPing {
					s.frontend(maps.PingKey(addr), kind)
				}
			}
		}
	}
	kind := maps.ExternalIP
	if c.facts.ExternalIPs == ExternalIPsOnly {
		kind = maps.ExternalOnly
	}
	add(service.ClusterIPs, maps.ClusterIP)
	add(service.LoadBalancerIPs, maps.LoadBalancer) // before the external IPs: an address that is both is guarded
	add(external, kind)
	if port.NodePort != 0 {
		s.frontend(maps.KeyOf(family.Unspecified(), port.NodePort, port.Protocol), maps.NodePort)
	}
	outside := s.outside()
	if refused := c.gather(port, family, endpoints); refused.IsValid() {
		c.wanted.problem("EndpointReserved", "%s: the endpoint %s is ignored: nodes receive there what only nodes may send them", s.ID, refused)
	}
	c.categorize(traffic{
		all:   !service.InternalLocal || outside,
		local: service.InternalLocal || service.ExternalLocal && outside,
	})
	c.tables(s, outside)
	s.KeptSum = c.keptSum()
	return len(s.Frontends)
}

// outside reports whether clients outside the cluster can reach the service other than by a
// ClusterIP.
func (s *Service) outside() bool {
	return slices.ContainsFunc(s.Frontends, func(f Frontend) bool { return f.Kind != maps.ClusterIP })
}

func (c *Compiler) local(addr netip.Addr) bool { return c.facts.Local != nil && c.facts.Local(addr) }

// frontend adds a row unless an earlier one has the same key. An address may be listed as more than
// one kind.
func (s *Service) frontend(key maps.SvcKey, kind uint32) {
	for _, f := range s.Frontends {
		if f.Key == key {
			return
		}
	}
	s.Frontends = append(s.Frontends, Frontend{key, kind})
}

// grow appends a Service, reusing the memory of the one previously at that position.
func (c *Compiler) grow() *Service {
	list := c.wanted.Services
	if len(list) < cap(list) {
		list = list[:len(list)+1]
	} else {
		list = append(list, Service{})
	}
	c.wanted.Services = list
	s := &list[len(list)-1]
	old := *s
	*s = Service{Frontends: old.Frontends[:0], Backends: old.Backends[:0]}
	for scope := range old.Tables {
		s.Tables[scope] = old.Tables[scope][:0]
	}
	return s
}

// tables fills in the backends and the slots of both scopes.
func (c *Compiler) tables(s *Service, outside bool) {
	for scope, list := range c.scopes {
		if len(list) > MaxSlots {
			c.wanted.problem("TooManyBackends", "%s has %d backends; %d of them are used", s.ID, len(list), MaxSlots)
		}
		for _, w := range list {
			if scope == maps.ScopeAll || !slices.ContainsFunc(c.scopes[maps.ScopeAll], func(o Weighted) bool { return o.Backend == w.Backend }) {
				s.Backends = append(s.Backends, w.Backend)
			}
		}
	}
	slices.SortFunc(s.Backends, compareBackends)
	for scope, list := range c.scopes {
		if len(list) == 0 {
			continue
		}
		s.Tables[scope] = Table(s.Tables[scope], s.Algorithm, outside, list)
		if len(list) == len(s.Backends) {
			continue // positions in the scope are positions in Backends
		}
		c.positions = c.positions[:0]
		for _, w := range list {
			at, _ := slices.BinarySearchFunc(s.Backends, w.Backend, compareBackends)
			c.positions = append(c.positions, uint32(at))
		}
		for i, at := range s.Tables[scope] {
			s.Tables[scope][i] = c.positions[at]
		}
	}
}

// Pod compiles the host ports of a pod of this node. Those that the runtime asked for take
// precedence. If it asked for none, or its request was lost, those of the Pod are used. The Pod may
// be nil.
func (c *Compiler) Pod(name model.Name, pod *model.Pod, attached []*model.Attachment) *Wanted {
	wanted := c.reset()
	if pod != nil {
		wanted.Problems = append(wanted.Problems, pod.Problems...)
		if pod.Unchecked && (c.facts.MayUncheck == nil || !c.facts.MayUncheck(name.Namespace)) {
			wanted.problem("SourceCheckKept", "annotation fairlead.io/source-check is ignored: it counts only if the namespace has the label "+
				"fairlead.io/source-check=optional, and %s does not have it", name.Namespace)
		}
		c.proxy(pod)
		if len(attached) == 0 && !c.facts.RuntimePorts {
			c.hostPorts(name, pod.HostPorts, pod.Addrs)
		}
	}
	for _, a := range attached {
		if a.Lost {
			c.lost(name, pod, a)
			continue
		}
		c.hostPorts(name, a.HostPorts, a.Addrs)
	}
	return wanted
}

// lost compiles the host ports of an attachment from its Pod, since a kubelet asks the runtime for
// exactly those. The name alone may by now belong to another pod, so the two must have an address
// in common.
func (c *Compiler) lost(name model.Name, pod *model.Pod, a *model.Attachment) {
	if pod == nil || len(pod.HostPorts) == 0 {
		return
	}
	what := "each hostPort as the spec has it"
	if slices.ContainsFunc(pod.Addrs, func(addr netip.Addr) bool { return slices.Contains(a.Addrs, addr) }) {
		c.hostPorts(name, pod.HostPorts, a.Addrs)
	} else {
		what = "no hostPort, as its device has none of the pod's addresses"
	}
	c.wanted.problem("PodRecordLost", "the node's record of the pod at device %s is lost; the node serves %s; delete the pod, so that it is recreated",
		a.Device, what)
}

// proxy reports what is wrong with a pod's request to have its connections handed to a proxy.
func (c *Compiler) proxy(pod *model.Pod) {
	switch {
	case pod.Proxy == "" || slices.Contains(c.facts.Proxies, pod.Proxy) && !pod.HostNetwork:
	case pod.HostNetwork:
		c.wanted.problem("ProxyIgnored", "annotation fairlead.io/l7-proxy is ignored: the pod uses its node's network")
	case c.facts.Proxies == nil:
		c.wanted.problem("ProxyIgnored", "annotation fairlead.io/l7-proxy is ignored: the pod does not get its network from fairlead")
	default:
		c.wanted.problem("UnknownProxy", "the pod cannot open TCP connections: annotation fairlead.io/l7-proxy names %.64q, and the agent's option "+
			"--l7-proxies has no such proxy", pod.Proxy)
	}
}

func (c *Compiler) hostPorts(name model.Name, ports []model.HostPort, addrs []netip.Addr) {
	for _, port := range ports {
		if host := port.HostIP; host.IsValid() && !host.IsLoopback() && !c.local(host) {
			// Otherwise anybody who may set host ports could take over other addresses for all
			// connections from this node.
			c.wanted.problem("HostIPNotLocal", "hostPort %d is not served: no interface of this node has its hostIP %s", port.Port, host)
			continue
		}
		for _, addr := range addrs {
			family := model.FamilyOf(addr)
			host := port.HostIP
			if !host.IsValid() {
				host = family.Unspecified()
			}
			if model.FamilyOf(host) == family {
				c.hostPort(name, host, &port, addr)
			}
		}
	}
}

// hostPort compiles one port, unless the pod already has it: the pod may have several addresses of
// a family.
func (c *Compiler) hostPort(name model.Name, host netip.Addr, port *model.HostPort, addr netip.Addr) {
	key := maps.KeyOf(host, port.Port, port.Protocol)
	if slices.ContainsFunc(c.wanted.Services, func(s Service) bool { return s.Frontends[0].Key == key }) {
		return
	}
	s := c.grow()
	s.ID = ID{
		Key:      model.Key{Kind: model.KindPod, Name: name},
		Port:     netip.AddrPortFrom(host, port.Port).String(),
		Protocol: port.Protocol,
		Family:   model.FamilyOf(host),
	}
	s.frontend(key, maps.HostPort)
	backend := maps.BackendOf(addr, port.ContainerPort, port.Protocol)
	backend.Flags = maps.BackendLocal
	s.Backends = append(s.Backends, backend)
	s.Tables[maps.ScopeAll] = append(s.Tables[maps.ScopeAll], 0)
}
