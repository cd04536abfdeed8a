package oracle

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slices returns the Service's own slices, and now and then some that only look like them.
func (g *generator) slices(service *corev1.Service) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	p := g.profile()
	for i := range g.IntN(4) {
		out = append(out, g.slice(fmt.Sprintf("%s-4-%d", serviceName, i), discoveryv1.AddressTypeIPv4, service, p))
	}
	for i := range g.IntN(3) {
		out = append(out, g.slice(fmt.Sprintf("%s-6-%d", serviceName, i), discoveryv1.AddressTypeIPv6, service, p))
	}
	if g.chance(10) {
		out = append(out, g.decoy(service, p))
	}
	return out
}

// decoy returns a slice that must not be used.
func (g *generator) decoy(service *corev1.Service, p profile) *discoveryv1.EndpointSlice {
	switch g.IntN(3) {
	case 0:
		s := g.slice("stranger", discoveryv1.AddressTypeIPv4, service, p)
		s.Labels[discoveryv1.LabelServiceName] = "stranger"
		return s
	case 1:
		s := g.slice("orphan", discoveryv1.AddressTypeIPv4, service, p)
		delete(s.Labels, discoveryv1.LabelServiceName)
		return s
	}
	s := g.slice("names", discoveryv1.AddressTypeFQDN, service, p)
	for i := range s.Endpoints {
		s.Endpoints[i].Addresses = []string{"pod.example.com"}
	}
	return s
}

func (g *generator) slice(name string, kind discoveryv1.AddressType, service *corev1.Service, p profile) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: g.labels()},
		AddressType: kind,
	}
	s.Labels[discoveryv1.LabelServiceName] = serviceName
	s.Ports = g.slicePorts(service)
	for range g.IntN(5) {
		s.Endpoints = append(s.Endpoints, g.endpoint(kind, p))
	}
	return s
}

// slicePorts returns the Service's ports, with the numbers that this slice's pods use for them, and
// other ports.
func (g *generator) slicePorts(service *corev1.Service) []discoveryv1.EndpointPort {
	var out []discoveryv1.EndpointPort
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		if g.chance(90) {
			out = append(out, endpointPort(port.Name, pick[int32](g, 8080, 8080, 8080, 9090)+int32(i), port.Protocol))
		}
	}
	switch g.IntN(20) {
	case 0:
		out = append(out, endpointPort("metrics", 9100, corev1.ProtocolTCP))
	case 1:
		out = append(out, endpointPort(service.Spec.Ports[0].Name, 8100, pick(g, corev1.ProtocolUDP, corev1.ProtocolSCTP)))
	case 2:
		out = append(out, discoveryv1.EndpointPort{Port: new(int32(8101)), Protocol: new(corev1.ProtocolTCP)})
	case 3:
		out = append(out, discoveryv1.EndpointPort{Name: new(service.Spec.Ports[0].Name), Protocol: new(service.Spec.Ports[0].Protocol)})
	case 4:
		out = append(out, endpointPort(service.Spec.Ports[0].Name, 0, service.Spec.Ports[0].Protocol))
	}
	return out
}

func endpointPort(name string, number int32, protocol corev1.Protocol) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &protocol}
}

func (g *generator) endpoint(kind discoveryv1.AddressType, p profile) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Hints: p.hints(g), NodeName: pick(g, nil, new(self), new(self), new("node-b"), new("node-c"))}
	if g.chance(98) {
		e.Addresses = []string{g.endpoint4()}
		if kind == discoveryv1.AddressTypeIPv6 {
			e.Addresses[0] = g.endpoint6()
		}
	}
	e.Conditions = discoveryv1.EndpointConditions{
		Ready: pick(g, nil, new(true)), Serving: pick(g, nil, new(true)), Terminating: pick(g, nil, new(false)),
	}
	if g.chance(p.healthy) {
		return e
	}
	e.Conditions.Ready = new(false)
	if g.chance(10) {
		e.Conditions.Ready = pick(g, nil, new(true)) // published although it is not ready
	}
	e.Conditions.Serving = pick(g, nil, new(true), new(false))
	if g.chance(p.terminating) {
		e.Conditions.Terminating = new(true)
	}
	return e
}
