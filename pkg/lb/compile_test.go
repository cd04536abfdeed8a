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
	wanted := NewCompiler(Facts{Node: &model.Node{}}).Service(hostile, nil)
	var frontends int
	for i := range wanted.Services {
		frontends += len(wanted.Services[i].Frontends)
	}
	if frontends < maxFrontends || frontends > maxFrontends+513 {
		t.Errorf("%d frontends, want as many as fit in %d", frontends, maxFrontends)
	}
	if n := len(wanted.Problems); n != 1 || wanted.Problems[0].Reason != "TooManyFrontends" {
		t.Errorf("problems %v, want one TooManyFrontends", wanted.Problems)
	}
}
