package source

import (
	"testing"
	"unique"

	"fairlead.io/fairlead/pkg/model"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func webSlice(changes ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1",
			Labels: map[string]string{"kubernetes.io/service-name": "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080)), Protocol: ptr(corev1.ProtocolTCP)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.5"}}},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

func webSliceModel(changes ...func(*model.Slice)) *model.Slice {
	s := &model.Slice{
		Name:      model.Name{Namespace: "shop", Name: "web-1"},
		Service:   "web",
		Family:    model.IPv4,
		Weight:    1,
		Ports:     []model.SlicePort{{Name: "http", Port: 8080, Protocol: model.TCP}},
		Endpoints: []model.Endpoint{{Addr: addrs("10.244.0.5")[0], Conditions: model.Ready | model.Serving}},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

func annotateSlice(name, value string) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{name: value} }
}

func TestSlice(t *testing.T) {
	tests := []struct {
		name   string
		change func(*discoveryv1.EndpointSlice)
		want   func(*model.Slice)
	}{
		{"plain", func(*discoveryv1.EndpointSlice) {}, func(*model.Slice) {}},
		{
			"of several ports those with a name and a number",
			func(s *discoveryv1.EndpointSlice) {
				s.Ports = []discoveryv1.EndpointPort{
					{Name: ptr(""), Port: ptr(int32(53)), Protocol: ptr(corev1.ProtocolUDP)},
					{Name: ptr("default"), Port: ptr(int32(54))},
					{Port: ptr(int32(55)), Protocol: ptr(corev1.ProtocolTCP)},
					{Name: ptr("all"), Protocol: ptr(corev1.ProtocolTCP)},
					{Name: ptr("none"), Port: ptr(int32(0)), Protocol: ptr(corev1.ProtocolTCP)},
					{Name: ptr("sctp"), Port: ptr(int32(56)), Protocol: ptr(corev1.ProtocolSCTP)},
				}
			},
			func(m *model.Slice) {
				m.Ports = []model.SlicePort{
					{Port: 53, Protocol: model.UDP},
					{Name: "default", Port: 54, Protocol: model.TCP},
					{Name: "sctp", Port: 56, Protocol: model.SCTP},
				}
			},
		},
		{
			"only the first address counts, and there must be one",
			func(s *discoveryv1.EndpointSlice) {
				s.Endpoints = []discoveryv1.Endpoint{{}, {Addresses: []string{"10.244.0.6", "10.244.0.7"}}}
			},
			func(m *model.Slice) { m.Endpoints[0].Addr = addrs("10.244.0.6")[0] },
		},
		{
			"leading zeros",
			func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "010.244.000.005" },
			func(*model.Slice) {},
		},
		{
			"IPv6",
			func(s *discoveryv1.EndpointSlice) {
				s.AddressType = discoveryv1.AddressTypeIPv6
				s.Endpoints[0].Addresses[0] = "fd00:0::5"
			},
			func(m *model.Slice) { m.Family, m.Endpoints[0].Addr = model.IPv6, addrs("fd00::5")[0] },
		},
		{
			"node",
			func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = ptr("n1") },
			func(m *model.Slice) { m.Endpoints[0].Node = unique.Make("n1") },
		},
		{
			"a node without a name is unknown",
			func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = ptr("") },
			func(*model.Slice) {},
		},
		{
			"hints",
			func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].Hints = &discoveryv1.EndpointHints{
					ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "b"}},
					ForNodes: []discoveryv1.ForNode{{Name: "n1"}},
				}
			},
			func(m *model.Slice) {
				m.Endpoints[0].Hints = &model.Hints{Zones: []string{"a", "b"}, Nodes: []string{"n1"}}
			},
		},
		{
			"hints for nobody are none",
			func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Hints = &discoveryv1.EndpointHints{} },
			func(*model.Slice) {},
		},
		{"weight", annotateSlice("fairlead.io/weight", "7"), func(m *model.Slice) { m.Weight = 7 }},
		{"weight of none", annotateSlice("fairlead.io/weight", " 0 "), func(m *model.Slice) { m.Weight = 0 }},
		{"most weight", annotateSlice("fairlead.io/weight", "1000"), func(m *model.Slice) { m.Weight = 1000 }},
		{"foreign annotation", annotateSlice("example.com/weight", "7"), func(*model.Slice) {}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(webSliceModel(test.want), Slice(webSlice(test.change)), comparers); diff != "" {
				t.Errorf("translation differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSliceConditions(t *testing.T) {
	yes, no := ptr(true), ptr(false)
	tests := []struct {
		ready, serving, terminating *bool
		want                        model.Conditions
	}{
		{nil, nil, nil, model.Ready | model.Serving},
		{yes, nil, nil, model.Ready | model.Serving},
		{no, nil, nil, model.Serving},
		{no, no, nil, 0},
		{nil, no, nil, model.Ready},
		{no, yes, yes, model.Serving | model.Terminating},
		{no, nil, yes, model.Serving | model.Terminating},
		{no, no, yes, model.Terminating},
		{yes, yes, yes, model.Ready | model.Serving | model.Terminating}, // publishNotReadyAddresses
		{nil, nil, no, model.Ready | model.Serving},
	}
	for _, test := range tests {
		in := discoveryv1.EndpointConditions{Ready: test.ready, Serving: test.serving, Terminating: test.terminating}
		got := Slice(webSlice(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions = in })).Endpoints[0].Conditions
		if got != test.want {
			t.Errorf("%s: got conditions %03b, want %03b", in.String(), got, test.want)
		}
	}
}

func TestSliceNotOurs(t *testing.T) {
	tests := []struct {
		name   string
		change func(*discoveryv1.EndpointSlice)
	}{
		{"host names", func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }},
		{"no Service", func(s *discoveryv1.EndpointSlice) { s.Labels = nil }},
		{"a Service without a name", func(s *discoveryv1.EndpointSlice) { s.Labels["kubernetes.io/service-name"] = "" }},
		{"headless", func(s *discoveryv1.EndpointSlice) { s.Labels["service.kubernetes.io/headless"] = "" }},
		{"no name", func(s *discoveryv1.EndpointSlice) { s.Name = "" }},
		{"no namespace", func(s *discoveryv1.EndpointSlice) { s.Namespace = "" }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := Slice(webSlice(test.change)); got != nil {
				t.Errorf("got %+v, want none", got)
			}
		})
	}
}

func TestSliceProblems(t *testing.T) {
	more := func(address string) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
		}
	}
	port := func(p discoveryv1.EndpointPort) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) { s.Ports = append(s.Ports, p) }
	}
	tests := []struct {
		name   string
		change func(*discoveryv1.EndpointSlice)
		reason string
		says   string
	}{
		{"address", more("pod.example"), "InvalidAddress", "pod.example"},
		{"empty address", more(""), "InvalidAddress", "not an IP address"},
		{"address with a zone", more("10.0.0.1%eth0"), "InvalidAddress", "eth0"},
		{"address of another family", more("fd00::1"), "InvalidAddress", "addressType"},
		{"unspecified address", more("0.0.0.0"), "InvalidAddress", "unicast"},
		{"multicast address", more("224.0.0.1"), "InvalidAddress", "unicast"},
		{"port out of range", port(discoveryv1.EndpointPort{Name: ptr("x"), Port: ptr(int32(70000))}), "InvalidPort", "70000"},
		{"negative port", port(discoveryv1.EndpointPort{Name: ptr("x"), Port: ptr(int32(-1))}), "InvalidPort", "-1"},
		{
			"protocol",
			port(discoveryv1.EndpointPort{Name: ptr("x"), Port: ptr(int32(1)), Protocol: ptr(corev1.Protocol("ICMP"))}),
			"UnsupportedProtocol", "ICMP",
		},
		{"weight too high", annotateSlice("fairlead.io/weight", "1001"), "InvalidWeight", "0 to 1000"},
		{"weight beyond any number", annotateSlice("fairlead.io/weight", "99999999999999999999"), "InvalidWeight", "0 to 1000"},
		{"negative weight", annotateSlice("fairlead.io/weight", "-1"), "InvalidWeight", "-1"},
		{"weight in words", annotateSlice("fairlead.io/weight", "heavy\x00"), "InvalidWeight", `heavy\x00`},
		{"no weight", annotateSlice("fairlead.io/weight", ""), "InvalidWeight", "0 to 1000"},
		{"misspelled annotation", annotateSlice("fairlead.io/wait", "5"), "UnknownAnnotation", "fairlead.io/weight"},
		{"annotation of another kind", annotateSlice("fairlead.io/algorithm", "x"), "MisplacedAnnotation", "a Service"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := Slice(webSlice(test.change))
			checkProblem(t, got.Problems, test.reason, test.says)
			got.Problems = nil
			if diff := cmp.Diff(webSliceModel(), got, comparers); diff != "" {
				t.Errorf("the rest differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSliceOfUnknownType(t *testing.T) {
	got := Slice(webSlice(func(s *discoveryv1.EndpointSlice) { s.AddressType = "MAC" }))
	checkProblem(t, got.Problems, "InvalidAddressType", "MAC")
	if len(got.Endpoints) != 0 || got.Service != "web" {
		t.Errorf("got %+v, want a slice of the Service without endpoints", got)
	}
}

// TestSliceSharesHints limits the memory of a slice: equal hints are one object.
func TestSliceSharesHints(t *testing.T) {
	zone := func(name string) *discoveryv1.EndpointHints {
		return &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: name}}}
	}
	got := Slice(webSlice(func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = nil
		for _, name := range []string{"a", "b", "a", "b", "c"} {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}, Hints: zone(name)})
		}
	})).Endpoints
	if got[0].Hints != got[2].Hints || got[1].Hints != got[3].Hints {
		t.Error("equal hints are not shared")
	}
	for i, want := range []string{"a", "b", "a", "b", "c"} {
		if zones := got[i].Hints.Zones; len(zones) != 1 || zones[0] != want {
			t.Errorf("endpoint %d has zones %q, want %s", i, zones, want)
		}
	}
}
