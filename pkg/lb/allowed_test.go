package lb

import (
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

func TestAllowed(t *testing.T) {
	const draining = model.Serving | model.Terminating
	endpoint := func(addr string, conditions model.Conditions) model.Endpoint {
		return model.Endpoint{Addr: netip.MustParseAddr(addr), Conditions: conditions}
	}
	slice := func(protocol model.Protocol, port uint16, list ...model.Endpoint) *model.Slice {
		return &model.Slice{
			Family: model.IPv4, Weight: 1, Ports: []model.SlicePort{{Name: "dns", Port: port, Protocol: protocol}}, Endpoints: list,
		}
	}
	listed := func(protocol model.Protocol) []*model.Slice {
		return []*model.Slice{
			slice(protocol, 5353,
				endpoint("10.1.0.1", model.Ready|model.Serving), endpoint("10.1.0.2", draining), endpoint("10.1.0.3", 0),
				endpoint("10.1.0.4", model.Terminating), endpoint("10.1.0.5", model.Ready)),
			slice(protocol, 9090, endpoint("10.1.0.6", model.Ready|model.Serving)),
			// Moving between slices, or its address passed on to a new pod: the ready one counts.
			slice(protocol, 5353, endpoint("10.1.0.7", model.Terminating)), slice(protocol, 5353, endpoint("10.1.0.7", model.Ready|model.Serving)),
		}
	}
	for _, test := range []struct {
		backend  string
		datagram bool
		stream   bool
	}{
		{"10.1.0.1:5353", true, true},
		{"10.1.0.1:9090", false, true}, // the endpoint is listed, on another port
		{"10.1.0.2:5353", true, true},
		{"10.1.0.3:5353", false, true},
		{"10.1.0.4:5353", false, true},
		{"10.1.0.5:5353", true, true},
		{"10.1.0.6:9090", true, true},
		{"10.1.0.6:5353", false, true},
		{"10.1.0.7:5353", true, true},
		{"10.1.0.8:5353", false, false},
		{"[fd01::1]:5353", false, false},
	} {
		backend := netip.MustParseAddrPort(test.backend)
		for protocol, want := range map[model.Protocol]bool{model.UDP: test.datagram, model.TCP: test.stream} {
			id := ID{Port: "dns", Protocol: protocol, Family: model.IPv4}
			kept := NewCompiler(Facts{Node: &model.Node{}}).Allowed(id, listed(protocol))
			if have := kept.Has(maps.BackendOf(backend.Addr(), backend.Port(), protocol)); have != want {
				t.Errorf("%s over %s: kept %v, want %v", backend, protocol, have, want)
			}
		}
	}
}

// AllowedSum stays the same while all backends stay, and changes whenever one leaves.
func TestAllowedSum(t *testing.T) {
	service := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "dns"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports: []model.Port{{Port: 53, Protocol: model.UDP}},
	}
	sum := func(conditions ...model.Conditions) uint64 {
		slice := &model.Slice{Family: model.IPv4, Weight: 1, Ports: []model.SlicePort{{Port: 53, Protocol: model.UDP}}}
		for i, c := range conditions {
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), Conditions: c})
		}
		return NewCompiler(Facts{Node: &model.Node{}}).Service(service, []*model.Slice{slice}).Services[0].AllowedSum
	}
	const ready, draining = model.Ready | model.Serving, model.Serving | model.Terminating
	all := sum(ready, ready, ready)
	if none := sum(); none != 0 || all == 0 {
		t.Errorf("without endpoints: %d, with all: %d", none, all)
	}
	if sum(ready, draining, ready) != all {
		t.Error("the sum changed although all endpoints are there")
	}
	// This endpoint is in no table, since others are ready.
	if sum(ready, 0, ready) == all || sum(ready, model.Terminating, ready) == all {
		t.Error("the sum did not change although an endpoint left")
	}
}
