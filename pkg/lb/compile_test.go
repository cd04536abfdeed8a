package lb

import (
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

// TestTooManyFrontends creates a Service that wants the whole map: what it gets is bounded, and a
// problem says so.
func TestTooManyFrontends(t *testing.T) {
	hostile := &model.Service{
		Name:       model.Name{Namespace: "shop", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::10")},
	}
	for i := range 512 {
		hostile.LoadBalancerIPs = append(hostile.LoadBalancerIPs, netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}))
	}
	for i := range 1000 {
		hostile.Ports = append(hostile.Ports, model.Port{Port: uint16(i + 1), Protocol: model.TCP})
	}
	const most = 1 << 14
	wanted := NewCompiler(Facts{Node: &model.Node{}, Quota: Quota{Frontends: most}}).Service(hostile, nil)
	var frontends int
	for i := range wanted.Services {
		frontends += len(wanted.Services[i].Frontends)
	}
	if frontends > most || frontends < most-513 || wanted.Uses.Frontends != frontends {
		t.Errorf("%d frontends, counted as %d, want as many as fit in %d", frontends, wanted.Uses.Frontends, most)
	}
	if n := len(wanted.Problems); n != 1 || wanted.Problems[0].Reason != "QuotaExceeded" {
		t.Errorf("problems %v, want one QuotaExceeded", wanted.Problems)
	}
}

// A Service that exceeds its quota keeps the port where load balancers ask about it: without an
// answer they would take every node out, also for the ports that are served.
func TestQuotaKeepsTheHealthCheck(t *testing.T) {
	service := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd96::1")},
		Ports: []model.Port{{Name: "a", Port: 1, Protocol: model.TCP}, {Name: "b", Port: 2, Protocol: model.TCP}}, HealthCheckNodePort: 30000, ExternalLocal: true,
	}
	wanted := NewCompiler(Facts{Node: &model.Node{}, Quota: Quota{Frontends: 1}}).Service(service, nil)
	if len(wanted.Services) != 1 || len(wanted.Problems) != 1 {
		t.Fatalf("%d ports are served, with the problems %v: want one of each", len(wanted.Services), wanted.Problems)
	}
	if len(wanted.Checks) != 2 {
		t.Errorf("health checks %v, want one of each family", wanted.Checks)
	}
}
