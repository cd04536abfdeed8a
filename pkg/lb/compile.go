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
	// IsNode reports whether an address is a node's: nothing of a Service may reach the tunnel there.
	IsNode func(netip.Addr) bool
	// NodeExternalIPs lets Services have addresses that this node's own Node lists.
	NodeExternalIPs bool
	// Quota bounds what one Service takes.
	Quota Quota
	// NodePorts is the range of node ports; the zero value stands for all.
	NodePorts model.PortRange
	// Claims says which addresses a Service may have. It is nil if there is only one Service.
	Claims Claims
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

// Claims decides between Services, nodes and pods that have the same address.
type Claims interface {
	RefusedExternalIP(of model.Name, addr netip.Addr) model.Refusal
	RefusedLoadBalancerIP(of *model.Service, addr netip.Addr) model.Refusal
	// ExternalClaimant returns a Service of another namespace that wants a load balancer address as
	// its externalIP.
	ExternalClaimant(of model.Name, addr netip.Addr) (model.Name, bool)
	// IsServer reports whether an API server of the cluster is there.
	IsServer(netip.AddrPort) bool
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
	ID        ID
	Frontends []Frontend
	Backends  []maps.Backend // of both scopes, sorted, without duplicates
	Tables    [maps.Scopes][]uint32
	Settings
	// SourceRanges are the clients allowed at its load balancer addresses, sorted. They are set
	// only together with the flag of that name.
	SourceRanges []netip.Prefix
	// AllowedSum changes when the result of Compiler.Allowed does. It is 0 without backends.
	AllowedSum uint64

	keys map[maps.SvcKey]struct{} // of Frontends, if there are many
}

// Wanted is everything that one object wants in the maps, and the health checks that load balancers
// ask for.
type Wanted struct {
	Services []Service
	Checks   []HealthCheck
	Problems []model.Problem
	Uses     Quota
	// Skipped says that Uses, of which it may lack some, do not fit, so that nothing else was computed.
	Skipped bool
	shrunk  bool // a problem says that a table is smaller than it should be
}

func (w *Wanted) problem(reason, format string, args ...any) {
	w.Problems = append(w.Problems, model.Problem{Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// Compiler compiles one object after another. It reuses buffers between calls: a result is valid
// until the next call.
type Compiler struct {
	selection
	wanted    Wanted
	positions []uint32
	limit     int // of the slots of a table
	room      Quota
}

// NewCompiler returns a Compiler for the node that facts describe.
func NewCompiler(facts Facts) *Compiler { return &Compiler{selection: selection{facts: facts}} }

// SetNode replaces the Compiler's view of this node.
func (c *Compiler) SetNode(node *model.Node) { c.facts.Node = node }

func (c *Compiler) reset() *Wanted {
	c.wanted = Wanted{Services: c.wanted.Services[:0], Checks: c.wanted.Checks[:0]}
	return &c.wanted
}

// Service compiles a Service with its slices. What exceeds the quota is left out: the port that does
// and all after it.
func (c *Compiler) Service(service *model.Service, endpoints []*model.Slice) *Wanted {
	return c.ServiceWithin(service, endpoints, Quota{})
}

// ServiceWithin is Service for one that is not wanted if it uses more than room. It then costs
// little more than to count what it would use.
func (c *Compiler) ServiceWithin(service *model.Service, endpoints []*model.Slice, room Quota) *Wanted {
	wanted := c.reset()
	wanted.Problems = append(wanted.Problems, service.Problems...)
	for _, slice := range endpoints {
		wanted.Problems = append(wanted.Problems, slice.Problems...)
	}
	algorithm := c.algorithm(service, wanted)
	addrs := c.addrs(service, wanted)
	c.checkNodePorts(service, wanted)
	direct := c.direct(service, wanted)
	c.index(endpoints)
	list := families(service, endpoints)
	c.room, c.limit = room, c.slotsEach(len(list)*len(service.Ports)*scopesOf(service))
	fits := true
	for _, family := range list {
		ranges := c.rangesOf(service, family)
		for i := range service.Ports {
			if fits = fits && c.fits(&service.Ports[i], family, &addrs); !fits || c.skips(Quota{}) {
				break
			}
			s := c.port(service, &service.Ports[i], family, &addrs, algorithm)
			s.guard(ranges)
			if c.facts.AcceptDirect && s.outside() {
				c.host(s, direct)
			}
		}
		if !wanted.Skipped {
			c.healthCheck(service, family)
		}
	}
	return wanted
}

// skips reports whether what a Service uses, and more, does not fit into the room for it.
func (c *Compiler) skips(more Quota) bool {
	if over := c.wanted.Uses.Add(more); over.Exceeds(c.room) != "" {
		c.wanted.Skipped, c.wanted.Uses = true, over
	}
	return c.wanted.Skipped
}

// fits reports whether the quota has room for a port. It looks at the port's size before anything is
// computed for it.
func (c *Compiler) fits(port *model.Port, family model.Family, addrs *addrs) bool {
	more := Quota{Frontends: addrs.count(family), Backends: c.endpoints(port.Name, port.Protocol, family)}
	if c.facts.VIPPing {
		more.Frontends *= 2
	}
	if port.NodePort != 0 {
		more.Frontends++
	}
	over := c.wanted.Uses.Add(more).Exceeds(c.facts.Quota)
	if over == "" {
		c.wanted.Uses = c.wanted.Uses.Add(more)
		return true
	}
	c.wanted.problem("QuotaExceeded", "IPv%d port %d and what comes after it are not served: a Service can have %s, use more Services",
		family, port.Port, over)
	return false
}

// scopesOf returns the number of tables that each port has.
func scopesOf(service *model.Service) int {
	if service.InternalLocal || service.ExternalLocal {
		return int(maps.Scopes)
	}
	return 1
}

// host adds the rows for direct server return, as far as the quota goes: without them packets come
// through this node both ways.
func (c *Compiler) host(s *Service, direct Direct) {
	before := len(s.Frontends)
	s.host(direct)
	hosted := Quota{Hosted: len(s.Frontends) - before}
	if over := c.wanted.Uses.Add(hosted).Exceeds(c.facts.Quota); over != "" {
		s.Frontends = s.Frontends[:before]
		c.wanted.problem("QuotaExceeded", "other nodes cannot use direct server return for port %s on this node: a Service can have %s rows", s.ID, over)
		return
	}
	c.wanted.Uses = c.wanted.Uses.Add(hosted)
}

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

// port compiles one port in one family.
func (c *Compiler) port(service *model.Service, port *model.Port, family model.Family, addrs *addrs, algorithm Algorithm) *Service {
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
			if model.FamilyOf(addr) == family && !c.reserved(kind, addr, port.Port, port.Protocol) {
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
	add(addrs.cluster, maps.ClusterIP)
	add(addrs.loadBalancer, maps.LoadBalancer) // before the external IPs: an address that is both is guarded
	add(addrs.external, kind)
	if port.NodePort != 0 && c.mayOpen(port.NodePort) && !c.reserved(maps.NodePort, family.Unspecified(), port.NodePort, port.Protocol) {
		s.frontend(maps.KeyOf(family.Unspecified(), port.NodePort, port.Protocol), maps.NodePort)
	}
	outside := s.outside()
	if refused := c.gather(port.Name, port.Protocol, family); refused.IsValid() {
		c.wanted.problem("EndpointReserved", "%s: the endpoint %s is ignored: a node receives the tunnel of the other nodes there (%s); "+
			"let the endpoint listen at another port", s.ID, refused, tunnels)
	}
	c.categorize(traffic{
		all:   !service.InternalLocal || outside,
		local: service.InternalLocal || service.ExternalLocal && outside,
	})
	c.tables(s, outside)
	s.AllowedSum = c.allowedSum()
	return s
}

// outside reports whether clients outside the cluster can reach the service other than by a
// ClusterIP.
func (s *Service) outside() bool {
	return slices.ContainsFunc(s.Frontends, func(f Frontend) bool { return f.Kind != maps.ClusterIP })
}

func (c *selection) local(addr netip.Addr) bool { return c.facts.Local != nil && c.facts.Local(addr) }

// usualFrontends is the largest number of frontends that are searched one by one.
const usualFrontends = 16

// frontend adds a row unless an earlier one has the same key. An address may be listed as more than
// one kind.
func (s *Service) frontend(key maps.SvcKey, kind uint32) {
	if len(s.Frontends) < usualFrontends {
		if slices.ContainsFunc(s.Frontends, func(f Frontend) bool { return f.Key == key }) {
			return
		}
	} else {
		if s.keys == nil {
			s.keys = make(map[maps.SvcKey]struct{}, 2*usualFrontends)
			for _, f := range s.Frontends {
				s.keys[f.Key] = struct{}{}
			}
		}
		if _, ok := s.keys[key]; ok {
			return
		}
		s.keys[key] = struct{}{}
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
