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
