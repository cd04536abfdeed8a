package oracle

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

// The names that all states share.
const (
	namespace   = "shop"
	serviceName = "web"
	self        = "node-a"

	labelProxyName = "service.kubernetes.io/service-proxy-name"
)

// node is the part of a node that the choice of endpoints depends on. An empty zone is a node
// without the label.
type node struct {
	name, zone string
}

// state is one Service and every object that may affect it. States share objects and never change
// them.
type state struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
}

// text returns the objects as manifests.
func (s *state) text() string {
	out := ""
	objects := []any{s.service}
	for _, slice := range s.slices {
		objects = append(objects, slice)
	}
	for _, object := range objects {
		b, err := yaml.Marshal(object)
		if err != nil {
			b = fmt.Appendf(nil, "# cannot be written as YAML: %v\n", err)
		}
		out += "---\n" + string(b)
	}
	return out
}

// collide reports whether two slices can name the same backend: whether they have a port in common.
func collide(a, b *discoveryv1.EndpointSlice) bool {
	if a.AddressType != b.AddressType || a.Labels[discoveryv1.LabelServiceName] != b.Labels[discoveryv1.LabelServiceName] {
		return false
	}
	for i := range a.Ports {
		for j := range b.Ports {
			if reflect.DeepEqual(a.Ports[i], b.Ports[j]) {
				return true
			}
		}
	}
	return false
}

// running reports whether an endpoint replaces an earlier one with the same address.
func running(e *discoveryv1.Endpoint) bool {
	return e.Conditions.Terminating == nil || !*e.Conditions.Terminating
}

// occurrence is one mention of an address: the slice and the position in it.
type occurrence struct {
	slice, endpoint int
}

// ambiguity returns two mentions of one address in different slices, between which the order of the
// slices would decide: Kubernetes keeps slices in a map, so it may take either. Within a slice the
// order is that of the list, and between a running and a terminating endpoint the order does not
// matter.
func (s *state) ambiguity() (a, b occurrence, found bool) {
	seen := map[string][]occurrence{}
	for i, slice := range s.slices {
		for j := range slice.Endpoints {
			e := &slice.Endpoints[j]
			if len(e.Addresses) == 0 {
				continue
			}
			key := canonical(e.Addresses[0])
			for _, o := range seen[key] {
				if o.slice != i && collide(s.slices[o.slice], slice) && s.undecided(key, o, occurrence{i, j}) {
					return o, occurrence{i, j}, true
				}
			}
			seen[key] = append(seen[key], occurrence{i, j})
		}
	}
	return a, b, false
}

// undecided reports whether the order of two mentions matters: they say different things, and
// either both are running or no mention of the address in either slice is.
func (s *state) undecided(addr string, a, b occurrence) bool {
	x, y := s.at(a), s.at(b)
	if sameSaying(x, y) || running(x) != running(y) {
		return false
	}
	return running(x) || !s.runs(addr, a) && !s.runs(addr, b)
}

func (s *state) at(o occurrence) *discoveryv1.Endpoint {
	return &s.slices[o.slice].Endpoints[o.endpoint]
}

// runs reports whether the slice of o has a running endpoint with that address.
func (s *state) runs(addr string, o occurrence) bool {
	list := s.slices[o.slice].Endpoints
	for i := range list {
		if len(list[i].Addresses) > 0 && canonical(list[i].Addresses[0]) == addr && running(&list[i]) {
			return true
		}
	}
	return false
}

// sameSaying reports whether two endpoints differ only in how their address is written.
func sameSaying(a, b *discoveryv1.Endpoint) bool {
	return reflect.DeepEqual(a.Conditions, b.Conditions) && reflect.DeepEqual(a.NodeName, b.NodeName) &&
		reflect.DeepEqual(a.Hints, b.Hints)
}
