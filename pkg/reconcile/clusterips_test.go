package reconcile

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
	store, tables, failing := model.NewStore("node0"), NewMemory(small), ""
	begin := func() *Reconciler {
		return start(t, store, tables, func(op string) error {
			if op == failing {
				return fmt.Errorf("%s: %w", op, errInjected)
			}
			return nil
		})
	}
	r := begin()
	expect := func(what, want string) {
		t.Helper()
		if err := r.Settle(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if diff := cmp.Diff(want, meaning(t, r.tables)[whereClusterIPs]); diff != "" {
			t.Errorf("%s (-want +have):\n%s", what, diff)
		}
	}
	store.SetServiceCIDR(serviceCIDR("kubernetes", "10.96.0.0/12", "fd00:96::/108"))
	store.SetService(web("10.96.0.1"))
	expect("before all Services are known", "")
	deliver(store, []*model.Service{web("10.96.0.1")}, nil)
	expect("all", "[10.96.0.0/12 fd00:96::/108]")
	more := web("10.96.0.1")
	more.ClusterIPs = append(more.ClusterIPs, netip.MustParseAddr("10.200.0.7"), netip.MustParseAddr("fd00:96::1"))
	store.SetService(more)
	expect("a ClusterIP of no range", "[10.200.0.7/32 10.96.0.0/12 fd00:96::/108]")
	store.ReplaceServiceCIDRs(nil)
	expect("without ServiceCIDRs", "[10.200.0.7/32 10.96.0.1/32 fd00:96::1/128]")
	store.SetNode(insideNode("node1", "10.200.0.7", "10.96.0.0/24"))
	expect("a ClusterIP that is a node's, and a pod's", "[fd00:96::1/128]")
	store.SetServiceCIDR(serviceCIDR("new", "10.96.0.0/16", "10.200.0.0/24", "0.0.0.0/7", "::/31", "10.201.0.0/24"))
	expect("ranges that would cut off nodes and pods", "[10.201.0.0/24 fd00:96::1/128]")
	key := model.Key{Kind: model.KindServiceCIDR, Name: model.Name{Name: "new"}}
	if found := r.Problems()[key]; len(found) != 4 || !strings.Contains(found[0].Message, "10.96.0.0/16 is not refused: it has addresses of node node1") {
		t.Errorf("problems: %v", found)
	}
	store.DeleteNode("node1")
	store.SetServiceCIDR(serviceCIDR("new", "10.96.0.0/16"))
	expect("mended", "[10.200.0.7/32 10.96.0.0/16 fd00:96::1/128]")
	if found := r.Problems()[key]; found != nil {
		t.Errorf("problems: %v", found)
	}
	for _, failing = range []string{"insert ranges", "delete ranges"} {
		store.SetServiceCIDR(serviceCIDR("new", "10.98.0.0/16"))
		if err := r.Pass(); !errors.Is(err, errInjected) {
			t.Fatalf("got error %v, want the injected one", err)
		}
		store.SetServiceCIDR(serviceCIDR("new", "10.96.0.0/16", "10.99.0.0/16"))
		_ = r.Pass() // which cannot succeed either
	}
	failing = ""
	expect("after failures", "[10.200.0.7/32 10.96.0.0/16 10.99.0.0/16 fd00:96::1/128]")
	store = model.NewStore("node0")
	r = begin()
	expect("another agent that knows nothing yet", "[10.200.0.7/32 10.96.0.0/16 10.99.0.0/16 fd00:96::1/128]")
	store.SetServiceCIDR(serviceCIDR("new", "10.96.0.0/16"))
	deliver(store, []*model.Service{web("10.96.0.1")}, nil)
	expect("the same agent later", "[10.96.0.0/16]")
	store.FixServiceRanges([]netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}, false)
	expect("by the option", "[10.96.0.1/32 10.97.0.0/16]")
	store.FixServiceRanges(nil, true)
	expect("off", "")
	if list, refuses := store.ServiceCIDRs(); refuses || slices.ContainsFunc(list, func(c *model.ServiceCIDR) bool { return len(c.CIDRs) > 0 }) {
		t.Errorf("off: %v %v", list, refuses)
	}
}
