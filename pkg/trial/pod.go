package trial

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// Denial is what policies deny to a packet.
type Denial struct {
	Rule      uint32
	Direction bpf.MapsPolicyDirection // as the pod sees it that the rule is about
}

// NewAtPod prepares a trial at the device of a pod of this node, as New does: at that of the sender, where also the
// policies of a receiver on this node are asked, or else at that of the receiver. It returns nil if neither is such a
// pod. isNetkit reports what kind a device is.
func NewAtPod(p Packet, isNetkit func(index uint32) bool, fields map[string]uint64, live *maps.Maps) (*Trial, error) {
	pods, err := maps.PodRows(live.PodLinks, live.Pods)
	if err != nil {
		return nil, err
	}
	t := &Trial{packet: p, fields: fields}
	at := podAt(pods, p.Source.Addr())
	if at != nil {
		t.meets = []object{{bpf.LoadPod, "tc_from_pod", bpf.MapsHookHOOK_POD}}
		t.dmac, t.smac = at.HostMAC[:], at.MAC[:]
		if !isNetkit(at.Index) { // whose program runs before the packet has come in anywhere
			t.from = int(at.Index)
		}
	} else if at = podAt(pods, p.Destination.Addr()); at != nil {
		t.meets = []object{{bpf.LoadPod, "tc_to_pod", bpf.MapsHookHOOK_POD}}
		t.dmac, t.smac = at.MAC[:], at.HostMAC[:]
		if err := t.comesFrom(); err != nil {
			return nil, err
		}
	}
	if at == nil {
		return nil, nil
	}
	if t.device, err = net.InterfaceByIndex(int(at.Index)); err != nil {
		return nil, fmt.Errorf("try a packet: find the device of a pod: %w", err)
	}
	t.live, err = live.Clone()
	return t, err
}

func podAt(pods []maps.Pod, addr netip.Addr) *maps.Pod {
	at := slices.IndexFunc(pods, func(p maps.Pod) bool { return slices.Contains(p.Addrs, addr) })
	if at < 0 {
		return nil
	}
	return &pods[at]
}

// comesFrom finds where a packet comes from that no pod of this node sends: by the device through which the kernel would
// answer, or from a process of the node, whose address it completes.
func (t *Trial) comesFrom() error {
	if source := t.packet.Source; source.Addr().IsUnspecified() {
		routes, err := netlink.RouteGet(t.packet.Destination.Addr().AsSlice())
		if err != nil {
			return fmt.Errorf("try a packet: find the address from which the node reaches the pod: %w", err)
		}
		if addr, ok := netip.AddrFromSlice(routes[0].Src); ok {
			t.packet.Source = netip.AddrPortFrom(addr.Unmap(), source.Port())
		}
		return nil
	}
	routes, err := netlink.RouteGet(t.packet.Source.Addr().AsSlice())
	if err != nil {
		return fmt.Errorf("try a packet: find where its sender is: %w", err)
	}
	const loopback = 1 // by which the kernel reaches addresses of the node
	if routes[0].LinkIndex != loopback {
		t.from = routes[0].LinkIndex
	}
	return nil
}

// denials returns what policies denied.
func (t *Trial) denials() ([]Denial, error) {
	m := t.own["policy_denials"]
	if m == nil {
		return nil, nil
	}
	var list []Denial
	var key bpf.MapsPolicyDenial
	var packets uint64
	rows := m.Iterate()
	for rows.Next(&key, &packets) {
		list = append(list, Denial{Rule: key.Rule, Direction: bpf.MapsPolicyDirection(key.Direction)})
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("try a packet: read what was denied: %w", err)
	}
	slices.SortFunc(list, func(a, b Denial) int { return int(b.Direction) - int(a.Direction) }) // egress is asked about first
	return list, nil
}

// has reports whether the programs of a trial use all of these maps.
func (t *Trial) has(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return t.own[name] == nil })
}
