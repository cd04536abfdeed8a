package policy

import (
	"maps"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// Flow is a flow of a pod of this node, as that pod's policies see it.
type Flow struct {
	Subject     netip.Addr      // the pod's
	Direction   model.Direction // in which it began
	Peer        netip.Addr
	Protocol    model.Protocol // AnyProtocol for those without ports
	Port        uint16         // that decides
	Source      netip.AddrPort // who began it, and to whom
	Destination netip.AddrPort
	// Judged says that the programs judged it when it began. Others are flows that they translate, of
	// pods that no policy was about.
	Judged bool
	ByNode bool // a process of the pod's node began it
}

// Fork returns a Compiler that has the same objects, and policies that are added or take the place of
// those with the same name. It shares nothing that either of the two changes.
func Fork(c *Compiler, policies []*model.NetworkPolicy) *Compiler {
	out := New(c.self, c.quota, 0)
	out.objects = c.objects.clone()
	for _, policy := range policies {
		out.SetPolicy(policy)
	}
	return out
}

// clone copies what changes. Policies, nodes and pods of this node are replaced rather than changed.
func (o *objects) clone() objects {
	return objects{
		self: o.self, policies: maps.Clone(o.policies), revisions: maps.Clone(o.revisions), namespaces: maps.Clone(o.namespaces),
		nodes: maps.Clone(o.nodes), local: maps.Clone(o.local), pods: o.pods.clone(),
	}
}

func (p *pods) clone() *pods {
	out := &pods{rows: slices.Clone(p.rows), free: p.free, count: p.count, seed: p.seed, shapes: make(map[string]*shape, len(p.shapes))}
	for i := range p.heads {
		out.heads[i] = slices.Clone(p.heads[i])
	}
	for key, s := range p.shapes {
		out.shapes[key] = &shape{key: key, pods: s.pods}
	}
	for at := range out.rows {
		if row := &out.rows[at]; row.shape != nil {
			row.shape = out.shapes[row.shape.key]
		}
	}
	return out
}
