package policyoracle

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/pkg/source"
)

// ours is the compiler, on a node that has all the pods.
type ours struct{ tables *policy.Tables }

func newOurs(s *state) ours {
	c := policy.New("self", policy.DefaultQuota(), 0)
	for _, namespace := range s.namespaces {
		c.SetNamespace(namespace.Name, namespace.Labels)
	}
	for _, pod := range s.pods {
		translated := source.PolicyPod(pod)
		c.SetPod(translated)
		c.SetLocal(translated)
	}
	for _, p := range s.policies {
		c.SetPolicy(source.NetworkPolicy(p))
	}
	for _, p := range s.cluster {
		c.SetPolicy(source.ClusterNetworkPolicy(p))
	}
	c.Update()
	return ours{c.Tables()}
}

func (o ours) evaluate(p probe) policy.Verdict {
	protocol := map[corev1.Protocol]model.Protocol{corev1.ProtocolTCP: model.TCP, corev1.ProtocolUDP: model.UDP, corev1.ProtocolSCTP: model.SCTP, "": 1}[p.protocol]
	return o.tables.Evaluate(policy.Packet{Src: netip.MustParseAddr(p.src), Dst: netip.MustParseAddr(p.dst), Protocol: protocol, Port: uint16(p.port)})
}
