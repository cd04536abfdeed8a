package oracle

import (
	"net/netip"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

// ours is our path from objects to rows: what the agent does, without the maps.
type ours struct {
	store    *model.Store
	compiler *lb.Compiler
	slices   map[model.Name]bool
}

func newOurs(on node) *ours {
	return &ours{
		store: model.NewStore(on.name),
		compiler: lb.NewCompiler(lb.Facts{
			Node:        &model.Node{Name: on.name, Zone: on.zone},
			Algorithm:   lb.Random,
			ExternalIPs: lb.ExternalIPsAll,
		}),
		slices: map[model.Name]bool{},
	}
}

// apply delivers the state and returns our answers.
func (o *ours) apply(s *state) answers {
	name := model.Name{Namespace: namespace, Name: serviceName}
	if service := source.Service(s.service); service != nil {
		o.store.SetService(service)
	} else {
		o.store.DeleteService(name)
	}
	current := make(map[model.Name]bool, len(s.slices))
	for _, object := range s.slices {
		if slice := source.Slice(object); slice != nil {
			o.store.SetSlice(slice)
			current[slice.Name] = true
		}
	}
	for slice := range o.slices {
		if !current[slice] {
			o.store.DeleteSlice(slice)
		}
	}
	o.slices = current
	out := answers{}
	service, slices := o.store.Service(name)
	if service == nil {
		return out
	}
	wanted := o.compiler.Service(service, slices)
	for i := range wanted.Services {
		compiled := &wanted.Services[i]
		key := portKey{compiled.ID.Port, compiled.ID.Protocol, compiled.ID.Family}
		out[key] = answerOf(compiled)
		for _, check := range wanted.Checks {
			if check.Family == key.family {
				out[key].HealthCheckNodePort, out[key].LocalReady = check.Port, check.Endpoints
			}
		}
	}
	return out
}

// answerOf reads the answer from the rows.
func answerOf(compiled *lb.Service) *answer {
	a := &answer{
		AffinitySeconds: compiled.AffinitySeconds,
		InternalLocal:   compiled.Flags&maps.InternalLocal != 0,
		ExternalLocal:   compiled.Flags&maps.ExternalLocal != 0,
		All:             scopeOf(compiled, maps.ScopeAll),
		Local:           scopeOf(compiled, maps.ScopeLocal),
	}
	for i := range compiled.Frontends {
		a.frontend(&compiled.Frontends[i])
	}
	a.ExternalIPs = sortedFrontends(a.ExternalIPs)
	a.LoadBalancerIPs = sortedFrontends(a.LoadBalancerIPs)
	for _, backend := range compiled.Backends {
		a.Reachable = append(a.Reachable, maps.BackendAddrPort(backend))
	}
	a.Reachable = sortedBackends(a.Reachable)
	a.SourceRanges = sortedPrefixes(compiled.SourceRanges)
	return a
}

func (a *answer) frontend(f *lb.Frontend) {
	at := maps.AddrPort(f.Key)
	switch f.Kind {
	case maps.ClusterIP:
		a.ClusterIP = at
	case maps.NodePort:
		a.NodePort = at
	case maps.ExternalIP:
		a.ExternalIPs = append(a.ExternalIPs, at)
	case maps.LoadBalancer:
		a.LoadBalancerIPs = append(a.LoadBalancerIPs, at)
	}
	a.External = a.External || f.Kind != maps.ClusterIP
}

// scopeOf returns the backends of a scope, one for each slot: all weights are equal here.
func scopeOf(compiled *lb.Service, scope int) []netip.AddrPort {
	var out []netip.AddrPort
	for _, position := range compiled.Tables[scope] {
		out = append(out, maps.BackendAddrPort(compiled.Backends[position]))
	}
	return sortedBackends(out)
}
