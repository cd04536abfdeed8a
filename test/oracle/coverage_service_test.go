package oracle

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiservice "k8s.io/kubernetes/pkg/api/v1/service"
	netutils "k8s.io/utils/net"
)

// service notes what is interesting about a Service.
func (c *coverage) service(s *corev1.Service) {
	_, foreign := s.Labels[labelProxyName]
	_, headless := s.Labels[corev1.IsHeadlessService]
	c.hitIf(foreign, "label: service of another proxy")
	c.hitIf(headless && s.Spec.ClusterIP != corev1.ClusterIPNone, "label: service called headless")
	spec := &s.Spec
	switch {
	case spec.ClusterIP == corev1.ClusterIPNone:
		c.hit("type: headless")
	case spec.Type == corev1.ServiceTypeExternalName && spec.ClusterIP != "":
		c.hit("type: ExternalName with a ClusterIP")
	default:
		c.hit("type: " + string(spec.Type))
	}
	c.families(spec)
	c.ports(spec)
	c.policy(s)
	c.outside(s)
	c.hitIf(spec.HealthCheckNodePort != 0 && apiservice.NeedsHealthCheck(s), "health check: port")
	switch {
	case spec.SessionAffinity == corev1.ServiceAffinityClientIP:
		c.hit("affinity: client")
	case spec.SessionAffinityConfig != nil:
		c.hit("affinity: timeout without affinity")
	default:
		c.hit("affinity: none")
	}
}

func (c *coverage) families(spec *corev1.ServiceSpec) {
	switch n := len(spec.IPFamilies); {
	case n == 0:
		c.hitIf(spec.ClusterIP != "", "family: not said")
	case n > len(spec.ClusterIPs):
		c.hit("family: fewer addresses than families")
	case n == 2:
		c.hit("family: both")
	default:
		c.hit("family: " + string(spec.IPFamilies[0]))
	}
	for _, ip := range spec.ClusterIPs {
		if ip != corev1.ClusterIPNone {
			c.text(ip)
		}
	}
}

func (c *coverage) ports(spec *corev1.ServiceSpec) {
	allocated := 0
	for i, port := range spec.Ports {
		c.hit("protocol: " + string(port.Protocol))
		c.hitIf(i > 0 && port.Name == spec.Ports[i-1].Name, "protocol: one name for two")
		if port.NodePort != 0 {
			allocated++
		}
	}
	if allocate := spec.AllocateLoadBalancerNodePorts; allocate != nil && !*allocate {
		c.hitIf(allocated == 0, "type: no node ports allocated")
		c.hitIf(allocated > 0 && allocated < len(spec.Ports), "type: some node ports allocated")
	}
}

func (c *coverage) policy(s *corev1.Service) {
	switch internal, external := apiservice.InternalPolicyLocal(s), apiservice.ExternalPolicyLocal(s); {
	case internal && external:
		c.hit("policy: both local")
	case internal:
		c.hit("policy: internal local")
	case external:
		c.hit("policy: external local")
	default:
		c.hit("policy: both cluster")
	}
}

func (c *coverage) outside(s *corev1.Service) {
	var families [2]bool
	note := func(ip string) {
		c.text(ip)
		families[0] = families[0] || netutils.IsIPv4String(ip)
		families[1] = families[1] || netutils.IsIPv6String(ip)
	}
	for _, ip := range s.Spec.ExternalIPs {
		valid := netutils.ParseIPSloppy(ip) != nil
		c.hitIf(valid, "outside: external IPs")
		c.hitIf(!valid, "outside: external IP that is none")
		note(ip)
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		switch {
		case in.IP == "":
			c.hit("outside: load balancer by name")
		case in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy:
			c.hit("outside: load balancer as proxy")
		default:
			c.hit("outside: load balancer VIP")
			c.hitIf(s.Spec.Type != corev1.ServiceTypeLoadBalancer, "outside: load balancer left over")
			c.hitIf(slices.Contains(s.Spec.ExternalIPs, in.IP), "outside: VIP that is an external IP")
			note(in.IP)
		}
	}
	allocated := slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort != 0 })
	c.hitIf(families[0] != families[1] && !allocated && len(s.Spec.IPFamilies) == 2, "policy: outside in one family only")
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		switch _, prefix, err := netutils.ParseCIDRSloppy(text); {
		case text == "0.0.0.0/0" || text == "::/0":
			c.hit("outside: source ranges open to all")
		case err != nil || prefix == nil:
			c.hitIf(text == "anywhere", "outside: source range that is none")
		default:
			c.hit("outside: source ranges")
		}
	}
}
