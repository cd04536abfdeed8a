package reconcile

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

func serviceCIDR(name string, cidrs ...string) *model.ServiceCIDR {
	object := &model.ServiceCIDR{Name: name, UID: "uid-" + name}
	for _, cidr := range cidrs {
		object.CIDRs = append(object.CIDRs, netip.MustParsePrefix(cidr))
	}
	return object
}

// TestClusterIPRanges follows the ranges in which what leads nowhere is refused while Services and
// ServiceCIDRs come, change and go, agents restart, and writes fail. None is written before the
// sources are complete.
func TestClusterIPRanges(t *testing.T) {
	f := follow(t, whereClusterIPs)
	f.store.SetServiceCIDR(serviceCIDR("kubernetes", "10.96.0.0/12", "fd00:96::/108"))
	f.store.SetService(web("10.96.0.1"))
	f.expect(t, "before all Services are known", "")
	deliver(f.store, []*model.Service{web("10.96.0.1")}, nil)
	f.expect(t, "all", "[10.96.0.0/12 fd00:96::/108]")
	more := web("10.96.0.1")
	more.ClusterIPs = append(more.ClusterIPs, netip.MustParseAddr("10.200.0.7"), netip.MustParseAddr("fd00:96::1"))
	f.store.SetService(more)
	f.expect(t, "a ClusterIP of no range", "[10.200.0.7/32 10.96.0.0/12 fd00:96::/108]")
	f.store.ReplaceServiceCIDRs(nil)
	f.expect(t, "without ServiceCIDRs", "[10.200.0.7/32 10.96.0.1/32 fd00:96::1/128]")
	f.store.SetNode(insideNode("node1", "10.200.0.7", "10.96.0.0/24"))
	f.expect(t, "a ClusterIP that is a node's, and a pod's", "[fd00:96::1/128]")
	f.store.SetServiceCIDR(serviceCIDR("new", "10.96.0.0/16", "10.200.0.0/24", "0.0.0.0/7", "::/31", "10.201.0.0/24"))
	f.expect(t, "ranges that would cut off nodes and pods", "[10.201.0.0/24 fd00:96::1/128]")
	key := model.Key{Kind: model.KindServiceCIDR, Name: model.Name{Name: "new"}}
	if found := f.Problems()[key]; len(found) != 4 || !strings.Contains(found[0].Message, "10.96.0.0/16 is not refused: it has addresses of node node1") {
		t.Errorf("problems: %v", found)
	}
	f.store.DeleteNode("node1")
	f.store.SetServiceCIDR(serviceCIDR("new", "10.96.0.0/16"))
	f.expect(t, "mended", "[10.200.0.7/32 10.96.0.0/16 fd00:96::1/128]")
	if found := f.Problems()[key]; found != nil {
		t.Errorf("problems: %v", found)
	}
	for _, f.failing = range []string{"insert ranges", "delete ranges"} {
		f.store.SetServiceCIDR(serviceCIDR("new", "10.98.0.0/16"))
		if err := f.Pass(); !errors.Is(err, errInjected) {
			t.Fatalf("got error %v, want the injected one", err)
		}
		f.store.SetServiceCIDR(serviceCIDR("new", "10.96.0.0/16", "10.99.0.0/16"))
		_ = f.Pass() // which cannot succeed either
	}
	f.failing = ""
	f.expect(t, "after failures", "[10.200.0.7/32 10.96.0.0/16 10.99.0.0/16 fd00:96::1/128]")
	f.begin(t)
	f.expect(t, "another agent that knows nothing yet", "[10.200.0.7/32 10.96.0.0/16 10.99.0.0/16 fd00:96::1/128]")
	f.store.SetServiceCIDR(serviceCIDR("new", "10.96.0.0/16"))
	deliver(f.store, []*model.Service{web("10.96.0.1")}, nil)
	f.expect(t, "the same agent later", "[10.96.0.0/16]")
	f.store.FixServiceRanges([]netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}, false)
	f.expect(t, "by the option", "[10.96.0.1/32 10.97.0.0/16]")
	f.store.FixServiceRanges(nil, true)
	f.expect(t, "off", "")
	if list, refuses := f.store.ServiceCIDRs(); refuses || slices.ContainsFunc(list, func(c *model.ServiceCIDR) bool { return len(c.CIDRs) > 0 }) {
		t.Errorf("off: %v %v", list, refuses)
	}
}
