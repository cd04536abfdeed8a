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

// follower is an agent's Reconciler, of whose rows one kind is compared. Another agent may take its place,
// and writes may fail.
type follower struct {
	*Reconciler
	store   *model.Store
	tables  *Tables
	where   string // of the rows
	failing string // the write that fails
}

func follow(t *testing.T, where string) *follower {
	t.Helper()
	f := &follower{tables: NewMemory(small), where: where}
	f.begin(t)
	return f
}

// begin begins an agent that knows no objects yet, over the rows that are there.
func (f *follower) begin(t *testing.T) {
	t.Helper()
	f.store = model.NewStore("node0")
	f.Reconciler = start(t, f.store, f.tables, func(op string) error {
		if op == f.failing {
			return fmt.Errorf("%s: %w", op, errInjected)
		}
		return nil
	})
}

func (f *follower) expect(t *testing.T, what, want string) {
	t.Helper()
	if err := f.Drain(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if diff := cmp.Diff(want, meaning(t, f.Reconciler.tables)[f.where]); diff != "" {
		t.Errorf("%s (-want +have):\n%s", what, diff)
	}
}

// TestInside follows the addresses that the programs treat as inside the cluster while nodes come,
// change and go, agents restart, and writes fail.
func TestInside(t *testing.T) {
	f := follow(t, whereInside)
	node1 := insideNode("node1", "192.0.2.1", "10.244.1.0/24", "fd00:244:1::/64")
	f.store.SetNode(node1)
	f.expect(t, "a node", "[10.244.1.0/24 192.0.2.1/32 fd00:244:1::/64]")
	f.store.SetNode(insideNode("node2", "192.0.2.1", "10.244.2.7/24"))
	f.store.DeleteNode("node1")
	f.expect(t, "before all nodes are known", "[10.244.1.0/24 10.244.2.0/24 192.0.2.1/32 fd00:244:1::/64]")
	deliver(f.store, nil, nil)
	f.store.SetNode(node1)
	f.store.SetNode(insideNode("node2", "192.0.2.2", "10.244.2.7/24"))
	f.expect(t, "all nodes", "[10.244.1.0/24 10.244.2.0/24 192.0.2.1/32 192.0.2.2/32 fd00:244:1::/64]")
	writes := f.stats.Writes
	f.store.SetNode(insideNode("node2", "192.0.2.2", "10.244.2.7/24"))
	if f.expect(t, "the same", "[10.244.1.0/24 10.244.2.0/24 192.0.2.1/32 192.0.2.2/32 fd00:244:1::/64]"); f.stats.Writes != writes {
		t.Error("rows were written although nothing changed")
	}
	for _, f.failing = range []string{"insert ranges", "delete ranges"} {
		f.store.SetNode(insideNode("node2", "192.0.2.3"))
		if err := f.Pass(); !errors.Is(err, errInjected) {
			t.Fatalf("got error %v, want the injected one", err)
		}
		f.store.SetNode(insideNode("node2", "192.0.2.2", "10.244.2.0/24"))
		_ = f.Pass() // which cannot succeed either
	}
	f.failing = ""
	f.store.DeleteNode("node1")
	f.expect(t, "after failures", "[10.244.2.0/24 192.0.2.2/32]")
	f.begin(t)
	f.expect(t, "another agent that knows nothing yet", "[10.244.2.0/24 192.0.2.2/32]")
	f.store.SetNode(insideNode("node2", "192.0.2.2"))
	deliver(f.store, nil, nil)
	f.store.SetNode(insideNode("node2", "192.0.2.2"))
	f.expect(t, "the same agent later", "[192.0.2.2/32]")
}
