package podnetwork

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"fairlead.io/fairlead/pkg/fabric"
)

// nativeRetry is the pause after an error.
const nativeRetry = 5 * time.Second

// followNative tells the programs which networks can route pod addresses: those of the cluster, and
// those in the options. Until all nodes are known, what an earlier agent told them stays, because
// pods would otherwise reach each other with their nodes' addresses.
func (n *Network) followNative(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.Store.Synced():
	}
	configured := func() []netip.Prefix { return nil }
	changed := (<-chan struct{})(nil)
	if file := n.masquerade; file != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-file.Ready():
		}
		configured = func() []netip.Prefix { list, _ := file.Native(); return list }
		changed = file.Changed()
	}
	for {
		err := n.Path.SetNative(slices.Concat(n.nativeInside(), n.Options.PodPrefixes(), n.Options.NativePrefixes(), configured()))
		retry := (<-chan time.Time)(nil)
		if err != nil {
			n.Log.Warn("cannot tell the programs which networks route pod addresses, trying again",
				"error", err)
			retry = time.After(nativeRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-retry:
		case <-n.Store.InsideChanged():
		case <-changed:
		}
	}
}

// nativeInside returns the networks in the cluster that can route pod addresses. With a tunnel, the
// network between the nodes may not, so other nodes see packets of pods with an address of their
// node; only this node's own addresses are reached without that network. A Node that claims all
// addresses is ignored, because every packet of pods to the outside would otherwise keep its
// address.
func (n *Network) nativeInside() []netip.Prefix {
	if n.Options.Routing != fabric.VXLAN {
		inside, _ := n.Store.Inside(noMoves)
		return slices.DeleteFunc(inside, fabric.TooWide)
	}
	self := n.Store.Self()
	list := slices.Clone(self.PodCIDRs)
	for _, addr := range self.Addrs {
		list = append(list, netip.PrefixFrom(addr, addr.BitLen()))
	}
	for _, node := range n.Store.Others() {
		list = append(list, node.PodCIDRs...)
	}
	return slices.DeleteFunc(list, fabric.TooWide)
}

// noMoves is a count that no Store reaches.
const noMoves = ^uint64(0)
