package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/pkg/snapshot"
)

// ByPodDevice is for packets that leave their pod with the service's address as destination. The
// program at the pod's device rewrites each of them, and likewise the answers.
const ByPodDevice Forwarding = "pod-device"

// optedOut returns the row by which the client's sockets are left alone, or nil. Processes in the
// node's network namespace differ only by cgroup, which the question does not include; a note says
// so then.
func (x *explainer) optedOut() *snapshot.Optout {
	unnamed := 0
	for i := range x.optouts {
		o := &x.optouts[i]
		switch {
		case x.cookie != 0 && o.Key == maps.OptoutKey{Id: x.cookie, Kind: maps.OptoutNetns}:
			return o
		case x.inNode() && len(o.Addrs) == 0:
			unnamed++
		case !x.inNode() && slices.Contains(o.Addrs, x.Client):
			return o
		}
	}
	if unnamed > 0 {
		x.e.Notes = append(x.e.Notes, fmt.Sprintf("%d pods in the node's network namespace have opted out of socket balancing: "+
			"what they dial is left alone. \"fairlead map dump optout\" names them.", unnamed))
	}
	return nil
}

// ofClient returns the pod of this node that has the client's address and gets its network from
// fairlead, or nil.
func (x *explainer) ofClient() *snapshot.LocalPod {
	at := slices.IndexFunc(x.pods, func(p snapshot.LocalPod) bool { return slices.Contains(p.Addresses, x.Client) })
	if at < 0 || x.inNode() {
		return nil
	}
	return &x.pods[at]
}

// pastSockets says why the client's socket is not pointed at a backend, or "" if it is.
func (x *explainer) pastSockets(service *snapshot.Service, frontend *snapshot.Frontend) string {
	if x.Protocol == model.SCTP {
		return "SCTP sockets meet no program: the kernel has no hook for them"
	}
	if row := x.optedOut(); row != nil {
		return fmt.Sprintf("%s has opted out of socket balancing (%s)", row.Pod, row.Why)
	}
	if service != nil && frontend.Row.Kind == maps.LoadBalancer && service.Has(snapshot.FlagSourceRanges) && !x.nodeIsAdmitted(service) {
		return "the service admits only its source ranges, which are checked on packets: " + snapshot.RangesText(service)
	}
	return ""
}

// nodeIsAdmitted reports whether the client is a process of the node, and the source ranges contain
// the node's address.
func (x *explainer) nodeIsAdmitted(service *snapshot.Service) bool {
	return x.inNode() && slices.ContainsFunc(x.primary, func(node netip.Addr) bool {
		return x.ofNode(node) && node.Is4() == x.Destination.Addr().Is4() &&
			slices.ContainsFunc(service.SourceRanges, func(p netip.Prefix) bool { return p.Contains(node) })
	})
}

// elsewhere says where packets are balanced that do not come through a pod's device.
func (x *explainer) elsewhere() string {
	const arriving = "where they arrive, if at all"
	if x.inNode() {
		return "where they leave the node"
	}
	return arriving
}

// noteDevice notes what happens to packets of the client that bypass the socket programs.
func (x *explainer) noteDevice() {
	if x.device != nil {
		x.e.Notes = append(x.e.Notes, fmt.Sprintf("Packets that the pod sends there through raw sockets, from a virtual machine or through sockets older "+
			"than the agent are balanced at its device %s, by its address and ports, and may get another backend.", x.device.DeviceName()))
	}
}

// noteProxy notes that the rest of the explanation is not about connections that are handed to a
// proxy.
func (x *explainer) noteProxy() {
	pod := x.ofClient()
	if pod == nil || !pod.Proxy.Asked || x.Protocol != model.TCP || x.ofNode(x.Destination.Addr()) {
		return
	}
	x.e.Notes = append(x.e.Notes, fmt.Sprintf("TCP connections of the pod are handed to its proxy on the node (%s) before packets are balanced at "+
		"the pod's device: the proxy's own connection gets the backend.", snapshot.ProxyText(pod.Proxy)))
}

// atDevice explains what the program at the pod's device does with the packets.
func (x *explainer) atDevice(service *snapshot.Service, frontend *snapshot.Frontend, why string) error {
	x.e.SourceRange = sourceRange(service, frontend, x.Client)
	x.e.Mode = fmt.Sprintf("%s; therefore packets are balanced at the pod's device %s, and the backend sees the pod's own address, or the node's "+
		"if the pod is its own backend", why, x.device.DeviceName())
	x.e.Forwarding = ByPodDevice
	if x.e.SourceRange != "" && !slices.ContainsFunc(service.SourceRanges, func(p netip.Prefix) bool { return p.Contains(x.Client) }) {
		x.drop("source-range")
		return nil
	}
	if service.AffinitySeconds > 0 {
		var err error
		if x.visit, err = x.rememberedAddr(x.Client, service); err != nil {
			return err
		}
	}
	return x.choose(service, frontend)
}

// packetSlot says what decides about the first packet of a flow, and returns the slot if it is
// known.
func (x *explainer) packetSlot(service *snapshot.Service, scope snapshot.NamedScope) (int, bool) {
	n := scope.Length
	switch x.packetDecider(service) {
	case lb.ByClient:
		x.e.Decides = fmt.Sprintf("the pod's address decides: always the same one of %d slots", n)
	case lb.ByTurn:
		x.e.Decides = fmt.Sprintf("flows take turns; the next one from any client gets slot %d of %d", int(service.Turn)%n, n)
		return int(service.Turn) % n, true
	default:
		x.e.Decides = fmt.Sprintf("the pod's address and the flow's ports decide which of %d slots", n)
	}
	return 0, false
}

// packetAffinity says what the pod's earlier flows mean for this one.
func (x *explainer) packetAffinity(service *snapshot.Service, scope snapshot.NamedScope) error {
	x.outsideAffinity(service)
	if service.AffinitySeconds > 0 && x.affinityHolds(service, scope) {
		x.next(scope, x.visit.row)
	}
	return nil
}

// drop records that packets are dropped, with the cause and the cure.
func (x *explainer) drop(reason string) { x.e.drop(reason) }

func (e *Explanation) drop(reason string) {
	e.Outcome, e.Reason = Dropped, reason
	list := reasons.All()
	if at := slices.IndexFunc(list, func(r reasons.Reason) bool { return r.Word == reason }); at >= 0 {
		e.Cause, e.Cure = list[at].Cause, list[at].Cure
	}
}

// Deny records that policies deny the connection wherever it may go.
func (e *Explanation) Deny() { e.drop(reasons.Policy) }
