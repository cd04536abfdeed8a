package lb

import (
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

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
		c.warn(&port)
		for _, addr := range addrs {
			family := model.FamilyOf(addr)
			host := port.HostIP
			if !host.IsValid() {
				host = family.Unspecified()
			}
			if model.FamilyOf(host) == family && !c.reserved(maps.HostPort, host, port.Port, port.Protocol) {
				c.hostPort(name, host, &port, addr)
			}
		}
	}
}

// serversOfNodes are the ports at which most nodes are administered.
var serversOfNodes = map[uint16]string{
	22: "sshd", 2379: "etcd", 2380: "etcd", 6443: "the API server", 10250: "the kubelet", 10256: "health checks of the node",
}

// warn says that a host port hides a server that most nodes have. It is served all the same, as by
// every other plugin: a node whose server listens elsewhere may want it.
func (c *Compiler) warn(port *model.HostPort) {
	if server, ok := serversOfNodes[port.Port]; ok && port.Protocol == model.TCP && !port.HostIP.IsLoopback() {
		c.wanted.problem("HostPortOfNode", "hostPort %d leads to the pod, also for those who expect %s of the node at that port; use another port",
			port.Port, server)
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
