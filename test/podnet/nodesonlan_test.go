package podnet

import (
	"cmp"
	"fmt"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// nodesOnLAN is a set of nodes on one link, with a pod each.
type nodesOnLAN struct {
	wire    *rig.Netns // the link that the nodes are on
	nodes   []*node
	leaders []*leader
	objects []*model.Node
	pods    []*pod
}

// lanForm says what the nodes on the LAN have.
type lanForm struct {
	name       string
	mode       string
	addr4      bool // the nodes have IPv4 addresses
	addr6      bool
	pods4      bool
	pods6      bool
	byPrograms bool
	byStack    bool // as with --host-routing=stack
	lastPast   bool // the last node's packets bypass its stack all the same
	rates      map[string]maps.Rates
	size       int // the number of nodes; 0: three
}

func newNodesOnLAN(t *testing.T, l lanForm) *nodesOnLAN {
	t.Helper()
	rig.Root(t)
	k := &nodesOnLAN{wire: rig.NewNetns(t, "wire")}
	rig.Bridge(t, k.wire, "br0")
	for i := 1; i <= cmp.Or(l.size, 3); i++ {
		object := &model.Node{Name: fmt.Sprintf("n%d", i), UID: fmt.Sprint(i)}
		if l.addr4 {
			object.Addrs = append(object.Addrs, netip.MustParseAddr(fmt.Sprintf("198.51.100.%d", i)))
		}
		if l.addr6 {
			object.Addrs = append(object.Addrs, netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%d", i)))
		}
		if l.pods4 {
			object.PodCIDRs = append(object.PodCIDRs, netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/24", i)))
		}
		if l.pods6 {
			object.PodCIDRs = append(object.PodCIDRs, netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/64", i)))
		}
		k.objects = append(k.objects, object)
	}
	for i, object := range k.objects {
		var cidrs []string
		for _, cidr := range object.PodCIDRs {
			cidrs = append(cidrs, cidr.String())
		}
		n := newNodeOf(t, func(n *node) {
			k.connect(t, n.ns, fmt.Sprintf("port%d", i))
			for _, addr := range object.Addrs {
				rig.Address(t, n.ns, "eth0", netip.PrefixFrom(addr, map[bool]int{true: 24, false: 64}[addr.Is4()]).String())
			}
			if l.mode == fabric.VXLAN {
				n.Less = fabric.Overhead(object.Addrs)
			}
			n.Rates = l.rates
			if l.byPrograms {
				n.group = rig.NewCgroup(t)
				n.Forwarding = &forwarding{BPFFS: rig.BPFFS(t), Cgroup: n.group.Path(), Bypass: !l.byStack || l.lastPast && i == len(k.objects)-1}
				if l.mode == fabric.VXLAN {
					n.Forwarding.Tunnel = fabric.DeviceName
				}
				for _, other := range k.objects {
					n.Forwarding.Native = append(n.Forwarding.Native, other.PodCIDRs...)
					if l.mode != fabric.VXLAN || other == object {
						for _, addr := range other.Addrs {
							n.Forwarding.Native = append(n.Forwarding.Native, netip.PrefixFrom(addr, addr.BitLen()))
						}
					}
				}
			}
		}, cidrs...)
		k.nodes = append(k.nodes, n)
		k.leaders = append(k.leaders, newLeader(t, n.ns, l.mode, object.Name))
		p := n.pod(fmt.Sprintf("p%d", i+1))
		n.mustAdd(p)
		k.pods = append(k.pods, p)
	}
	return k
}

// connect connects a namespace to the link of the nodes, by a port with this name.
func (k *nodesOnLAN) connect(t *testing.T, ns *rig.Netns, port string) {
	t.Helper()
	rig.Veth(t, ns, "eth0", k.wire, port)
	rig.Enslave(t, k.wire, port, "br0")
}

// newServingNodesOnLAN returns nodes on a LAN in which all pods and nodes answer.
func newServingNodesOnLAN(t *testing.T, l lanForm) *nodesOnLAN {
	t.Helper()
	k := newNodesOnLAN(t, l)
	for i, p := range k.pods {
		listenIn(t, p.Netns)
		listenIn(t, k.nodes[i].ns)
	}
	return k
}

// announceNodes tells the first nodes about each other, and waits until they have the routes.
func (k *nodesOnLAN) announceNodes(objects []*model.Node) {
	routes := 0
	for _, object := range objects {
		routes += len(object.PodCIDRs)
	}
	for _, l := range k.leaders[:len(objects)] {
		l.announceNodes(objects)
	}
	for _, l := range k.leaders[:len(objects)] {
		l.untilRoutes(routes)
	}
}
