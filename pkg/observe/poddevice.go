package observe

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// ByPodDevice is how packets get to a backend that still have the service's address when they leave their pod: each is
// rewritten at the device of the pod, and what answers it likewise.
const ByPodDevice Forwarding = "pod-device"

// ofClient returns the pod of this node whose network is fairlead's and whose address the client has, or nil.
func (x *explainer) ofClient() *LocalPod {
	at := slices.IndexFunc(x.pods, func(p LocalPod) bool { return slices.Contains(p.Addresses, x.Client) })
	if at < 0 || x.inNode() {
		return nil
	}
	return &x.pods[at]
}

// name returns what people know the pod's device as.
func (p *LocalPod) name() string { return cmp.Or(p.Device, fmt.Sprintf("with index %d", p.Interface)) }

// pastSockets says why the client's socket is not pointed at a backend; "" if it is.
func (x *explainer) pastSockets(service *Service, frontend *Frontend) string {
	if x.Protocol == model.SCTP {
		return "sockets of SCTP meet no program: the kernel has no hook for them"
	}
	if row := x.optedOut(); row != nil {
		return fmt.Sprintf("%s has opted out of socket balancing (%s)", row.Pod, row.Why)
	}
	if service != nil && frontend.row.Kind == maps.LoadBalancer && service.has(flagSourceRanges) {
		return "the service lets in its source ranges alone, which are judged by packets: " + rangesText(service)
	}
	return ""
}

// elsewhere says where packets are balanced that no device of a pod's brings.
func (x *explainer) elsewhere() string {
	const arriving = "where they arrive, if at all"
	if x.inNode() {
		return "where they leave the node, unless --pod-network is off, and otherwise " + arriving
	}
	return arriving
}

// noteDevice says what becomes of what passes a client's sockets by.
func (x *explainer) noteDevice() {
	if x.device != nil {
		x.e.Notes = append(x.e.Notes, fmt.Sprintf("What the pod sends there by raw sockets, by those of a virtual machine or by such as are older "+
			"than the agent is balanced at its device %s, by its address and ports, and may get another backend.", x.device.name()))
	}
}

// noteProxy says that what follows is not what the client's connections get.
func (x *explainer) noteProxy() {
	pod := x.ofClient()
	if pod == nil || !pod.Proxy.Asked || x.Protocol != model.TCP || x.ofNode(x.Destination.Addr()) {
		return
	}
	x.e.Notes = append(x.e.Notes, fmt.Sprintf("What the pod opens by TCP is handed to its proxy on the node (%s) before anything is balanced at "+
		"the pod's device: it is the proxy's own connection that gets a backend.", proxyText(pod.Proxy)))
}

// atDevice explains what the program at the pod's device makes of the packets.
func (x *explainer) atDevice(service *Service, frontend *Frontend, why string) error {
	x.e.SourceRange = sourceRange(service, frontend, x.Client)
	x.e.Mode = fmt.Sprintf("%s; so packets are balanced at the pod's device %s, and a backend sees the pod's own address, or the node's "+
		"where it is the pod itself", why, x.device.name())
	x.e.Forwarding = ByPodDevice
	if x.e.SourceRange != "" && !slices.ContainsFunc(service.SourceRanges, func(p netip.Prefix) bool { return p.Contains(x.Client) }) {
		x.drop("source-range")
		return nil
	}
	if service.AffinitySeconds > 0 {
		var err error
		if x.visit, err = x.rememberedAddr(x.Client, service.Index); err != nil {
			return err
		}
	}
	return x.choose(service, frontend)
}

// packetSlot says what decides about the first packet of a flow, and returns the slot if that can be told.
func (x *explainer) packetSlot(service *Service, scope namedScope) (int, bool) {
	n := scope.Length
	switch alone := x.clientDecides(service); {
	case alone:
		x.e.Decides = fmt.Sprintf("the pod's address decides, always the same of %d slots", n)
	case lb.Algorithm(service.algorithm) == lb.RoundRobin:
		x.e.Decides = fmt.Sprintf("flows take turns; the next one of any client gets slot %d of %d", int(service.turn)%n, n)
		return int(service.turn) % n, true
	default:
		x.e.Decides = fmt.Sprintf("the pod's address and the flow's ports decide which of %d slots", n)
	}
	return 0, false
}

// packetAffinity says what the pod's earlier flows mean for this one.
func (x *explainer) packetAffinity(service *Service, scope namedScope) error {
	x.outsideAffinity(service)
	if service.AffinitySeconds > 0 && x.affinityHolds(service, scope) {
		x.next(scope, x.visit.row)
	}
	return nil
}

// drop says that packets are dropped, what that means, and what to do about it.
func (x *explainer) drop(reason string) {
	x.e.Outcome, x.e.Reason = Dropped, reason
	list := Reasons()
	if at := slices.IndexFunc(list, func(r Reason) bool { return r.Word == reason }); at >= 0 {
		x.e.Cause, x.e.Cure = list[at].Cause, list[at].Cure
	}
}
