package source

import (
	"slices"
	"time"
	"unique"

	"fairlead.io/fairlead/pkg/model"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Slice translates an EndpointSlice. It returns nil for one that fairlead does not use: of host
// names, without a Service, or with the label of a headless Service's slices.
func Slice(s *discoveryv1.EndpointSlice) *model.Slice {
	owner := s.Labels[discoveryv1.LabelServiceName]
	if s.AddressType == discoveryv1.AddressTypeFQDN || owner == "" || s.Namespace == "" || s.Name == "" || labeled(s.Labels, corev1.IsHeadlessService) {
		return nil
	}
	p := &problems{}
	checkOnly(p, s.Annotations, kindSlice)
	out := &model.Slice{
		Name:    model.Name{Namespace: s.Namespace, Name: s.Name},
		Service: owner,
		Weight:  weight(p, s.Annotations),

		Triggered: triggered(s.Annotations[corev1.EndpointsLastChangeTriggerTime]),
	}
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4:
		out.Family = model.IPv4
	case discoveryv1.AddressTypeIPv6:
		out.Family = model.IPv6
	default:
		p.add("InvalidAddressType", "addressType %.64q is not known, the slice is not used: use IPv4 or IPv6", s.AddressType)
		out.Problems = p.all()
		return out
	}
	out.Ports = slicePorts(p, s.Ports)
	out.Endpoints = endpoints(p, out.Family, s.Endpoints)
	out.Problems = p.all()
	return out
}

// triggered returns the time that the endpoint controller wrote, in nanoseconds, or 0. An invalid
// time says nothing about the endpoints, so it is not reported as a problem.
func triggered(text string) int64 {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.Year() < 1970 || at.Year() > 2200 { // the range of the number
		return 0
	}
	return at.UnixNano()
}

// slicePorts leaves out ports without a name or a number, as kube-proxy does. A port without a name
// cannot be matched; one without a number means every port, and is for other consumers.
func slicePorts(p *problems, in []discoveryv1.EndpointPort) []model.SlicePort {
	if len(in) == 0 {
		return nil
	}
	list := make([]model.SlicePort, 0, len(in))
	for i := range in {
		port := &in[i]
		if port.Name == nil || port.Port == nil || *port.Port == 0 {
			continue
		}
		var name corev1.Protocol
		if port.Protocol != nil {
			name = *port.Protocol
		}
		proto, ok := protocol(name)
		switch {
		case !ok:
			p.add("UnsupportedProtocol", "port %d is ignored: its protocol %.64q is not known, use TCP, UDP or SCTP", *port.Port, name)
		case !isPort(*port.Port):
			p.add("InvalidPort", "port %d is ignored: use 1 to 65535", *port.Port)
		default:
			list = append(list, model.SlicePort{Name: *port.Name, Port: uint16(*port.Port), Protocol: proto})
		}
	}
	return list
}

func endpoints(p *problems, family model.Family, in []discoveryv1.Endpoint) []model.Endpoint {
	if len(in) == 0 {
		return nil
	}
	var shared hintSet
	list := make([]model.Endpoint, 0, len(in))
	for i := range in {
		e := &in[i]
		if len(e.Addresses) == 0 {
			continue
		}
		addr, ok := parseAddr(e.Addresses[0]) // the API has deprecated further ones
		switch {
		case !ok:
			p.add("InvalidAddress", "endpoint %.64q is ignored: it is not an IP address, correct it", e.Addresses[0])
			continue
		case model.FamilyOf(addr) != family:
			p.add("InvalidAddress", "endpoint %s is ignored: it is not of the slice's addressType, move it to another slice", addr)
			continue
		case model.Special(addr) != "":
			p.add("InvalidAddress", "endpoint %s is ignored: it is %s, use a unicast address that the network knows", addr, model.Special(addr))
			continue
		}
		out := model.Endpoint{Addr: addr, Hints: shared.of(e.Hints), Conditions: conditions(&e.Conditions)}
		if e.NodeName != nil && *e.NodeName != "" {
			out.Node = unique.Make(*e.NodeName)
		}
		list = append(list, out)
	}
	return list
}

// conditions applies the API's defaults: an endpoint works unless its slice says otherwise.
func conditions(in *discoveryv1.EndpointConditions) model.Conditions {
	var out model.Conditions
	if in.Ready == nil || *in.Ready {
		out |= model.Ready
	}
	if in.Serving == nil || *in.Serving {
		out |= model.Serving
	}
	if in.Terminating != nil && *in.Terminating {
		out |= model.Terminating
	}
	return out
}

// hintSet shares equal hints among the endpoints of a slice, because most name one of a few zones.
// It remembers only a few hints, because those for nodes may all differ.
type hintSet struct {
	recent [8]*model.Hints
	next   int
}

func (s *hintSet) of(in *discoveryv1.EndpointHints) *model.Hints {
	if in == nil || len(in.ForZones)+len(in.ForNodes) == 0 {
		return nil
	}
	for _, known := range s.recent {
		if known != nil && sameHints(known, in) {
			return known
		}
	}
	out := &model.Hints{}
	if n := len(in.ForZones); n > 0 {
		out.Zones = make([]string, 0, n)
	}
	if n := len(in.ForNodes); n > 0 {
		out.Nodes = make([]string, 0, n)
	}
	for _, zone := range in.ForZones {
		out.Zones = append(out.Zones, zone.Name)
	}
	for _, node := range in.ForNodes {
		out.Nodes = append(out.Nodes, node.Name)
	}
	s.recent[s.next%len(s.recent)] = out
	s.next++
	return out
}

func sameHints(known *model.Hints, in *discoveryv1.EndpointHints) bool {
	return slices.EqualFunc(known.Zones, in.ForZones, func(name string, zone discoveryv1.ForZone) bool { return name == zone.Name }) &&
		slices.EqualFunc(known.Nodes, in.ForNodes, func(name string, node discoveryv1.ForNode) bool { return name == node.Name })
}
