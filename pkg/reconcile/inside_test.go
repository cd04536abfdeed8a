package reconcile

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/model"
)

func insideNode(name, addr string, cidrs ...string) *model.Node {
	node := &model.Node{Name: name, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
	for _, cidr := range cidrs {
		node.PodCIDRs = append(node.PodCIDRs, netip.MustParsePrefix(cidr))
	}
	return node
}

// TestInside follows the addresses that the programs treat as inside the cluster while nodes come,
// change and go, agents restart, and writes fail.
func TestInside(t *testing.T) {
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
		if diff := cmp.Diff(want, meaning(t, r.tables)[whereInside]); diff != "" {
			t.Errorf("%s (-want +have):\n%s", what, diff)
		}
	}
	node1 := insideNode("node1", "192.0.2.1", "10.244.1.0/24", "fd00:244:1::/64")
	store.SetNode(node1)
	expect("a node", "[10.244.1.0/24 192.0.2.1/32 fd00:244:1::/64]")
	store.SetNode(insideNode("node2", "192.0.2.1", "10.244.2.7/24"))
	store.DeleteNode("node1")
	expect("before all nodes are known", "[10.244.1.0/24 10.244.2.0/24 192.0.2.1/32 fd00:244:1::/64]")
	deliver(store, nil, nil)
	store.SetNode(node1)
	store.SetNode(insideNode("node2", "192.0.2.2", "10.244.2.7/24"))
	expect("all nodes", "[10.244.1.0/24 10.244.2.0/24 192.0.2.1/32 192.0.2.2/32 fd00:244:1::/64]")
	writes := r.stats.Writes
	store.SetNode(insideNode("node2", "192.0.2.2", "10.244.2.7/24"))
	if expect("the same", "[10.244.1.0/24 10.244.2.0/24 192.0.2.1/32 192.0.2.2/32 fd00:244:1::/64]"); r.stats.Writes != writes {
		t.Error("rows were written although nothing changed")
	}
	for _, failing = range []string{"insert ranges", "delete ranges"} {
		store.SetNode(insideNode("node2", "192.0.2.3"))
		if err := r.Pass(); !errors.Is(err, errInjected) {
			t.Fatalf("got error %v, want the injected one", err)
		}
		store.SetNode(insideNode("node2", "192.0.2.2", "10.244.2.0/24"))
		_ = r.Pass() // which cannot succeed either
	}
	failing = ""
	store.DeleteNode("node1")
	expect("after failures", "[10.244.2.0/24 192.0.2.2/32]")
	store = model.NewStore("node0")
	r = begin()
	expect("another agent that knows nothing yet", "[10.244.2.0/24 192.0.2.2/32]")
	store.SetNode(insideNode("node2", "192.0.2.2"))
	deliver(store, nil, nil)
	store.SetNode(insideNode("node2", "192.0.2.2"))
	expect("the same agent later", "[192.0.2.2/32]")
}
