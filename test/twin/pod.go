package twin

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// The reasons that packets are counted as here.
const (
	Spoofed     Reason = "spoofed"
	SpoofedLink Reason = "spoofed-link"
	Neighbor    Reason = "neighbor"
	Router      Reason = "router"
	DHCP        Reason = "dhcp"
	Loopback    Reason = "loopback"
	Protocol    Reason = "protocol"
	Malformed   Reason = "malformed"
	Forged      Reason = "forged"
	TunnelPort  Reason = "tunnel-port"
)

// Pods of this node have devices of their own. There the node checks what they may send, and
// translates the packets that they send to services and get from them. It does so nowhere else:
// beyond the device, everybody sees the pod and its backend.

// position is where a packet is on its way.
type position uint8

const (
	comesIn position = iota // through a device, from outside
	leaves                  // the node
	fromPod
	toPod
)

func (p position) String() string { return []string{"in", "leaving", "from pod", "to pod"}[p] }

// isAt reports whether packets of a row are translated at a place.
func (r *Row) isAt(at position) bool {
	switch at {
	case comesIn:
		return !r.Inside
	case leaves:
		return !r.Inside && r.Reply && r.Local
	case fromPod:
		return r.Inside && !r.Reply
	}
	return r.Inside && r.Reply
}

// astray handles an incoming packet whose row is a pod's: a host outside uses a pod's address, or a
// backend answers a pod.
func (s *step) astray(row *Row) {
	if row.Reply {
		s.pass("answer to a pod")
		return
	}
	s.drop(Spoofed, "like a pod's")
}

// elsewhere handles a packet whose row belongs to another place. A pod's answer to itself passes no
// other place.
func (s *step) elsewhere(row *Row, what string) {
	path := s.at.String() + ", no reply"
	if what != "" {
		path = what + ", " + path
	}
	// Even if another node forwarded it: its flow is known here.
	s.out.Verdict, s.out.Data, s.out.Path = Stack, s.frame, path
	s.answersItself = s.at == fromPod && row.isAt(toPod)
}

// Send returns what must happen to a frame that a pod sends through its device. If past, translated
// packets go on to their destination without passing the node's stack.
func (n *Node) Send(frame []byte, pod int, past bool, w Witness) (Outcome, error) {
	s := &step{Node: n, packet: read(frame), frame: frame, device: pod, at: fromPod, witness: w}
	switch reason, stays := s.checkAntispoof(); {
	case reason != "":
		s.drop(reason, string(reason))
	case stays:
		s.stay()
	default:
		s.goThrough(past)
	}
	s.out.Path, s.out.OfPod = "pod, "+s.out.Path, true
	return s.out, s.err
}

// stay handles what a pod sends to its link.
func (s *step) stay() {
	s.pass("stays on its link")
	to := s.flow.Dest.Addr()
	_, own := s.Addresses[to]
	isDiscovery := s.content == message && s.frame[s.l4] >= firstOfLink && s.frame[s.l4] <= lastOfLink
	leaves := !own && !isNear6(to) && to != netip.MustParseAddr("255.255.255.255")
	switch {
	case (leaves || !s.v4 && !isDiscovery) && s.deniesOwn(0):
	case s.isForTunnel(s.frame):
		s.drop(TunnelPort, "to the tunnel of its node")
	}
}

// Deliver returns the same for a frame that goes to a pod, from the node's stack or past it. It came in by the
// device `by`, or a process of the node sent it.
func (n *Node) Deliver(frame []byte, pod, by int) (Outcome, error) {
	s := &step{Node: n, packet: read(frame), frame: frame, device: pod, at: toPod, origin: by}
	switch s.pass("nobody dials"); {
	case by != pod && s.denies(frame, pod, received):
	case n.dialed:
		s.translate()
	}
	s.out.Path, s.out.OfPod = "for a pod, "+s.out.Path, true
	return s.out, s.err
}

// goThrough handles what the pod is allowed to send.
func (s *step) goThrough(past bool) {
	_, toPod := s.Pods[s.flow.Dest.Addr()]
	if s.pass("not dialed"); !toPod && !s.isPlainlyNobodys() {
		s.translate()
		if s.out.Verdict != Stack {
			return
		}
		if s.answersItself {
			s.answerItself()
			return
		}
		if known, ok := s.Pods[read(s.out.Data).flow.Dest.Addr()]; ok && known == s.device {
			if !s.denies(s.out.Data, known, turned) {
				s.sendTo(known, received)
			}
			return
		}
	}
	known, isPod := s.Pods[read(s.out.Data).flow.Dest.Addr()]
	switch {
	case s.deniesOwn(known):
	case !isPod && s.isForTunnel(s.out.Data):
		s.drop(TunnelPort, "to a tunnel")
	case !past:
	case isPod:
		s.sendTo(known, handed)
	default:
		s.sendOut()
	}
}

// isPlainlyNobodys reports whether a packet has its ports in the usual place, and they match no
// service: then the programs do not look for a row that it may have for other reasons.
func (s *step) isPlainlyNobodys() bool {
	if s.content != ported && s.content != cut || s.flow.Proto == protoSCTP || s.l4 != s.l3+s.base() || s.first {
		return false
	}
	opens := s.flow.Proto != protoTCP || s.content == ported && s.flags&(SYN|ACK) == SYN
	if opens && s.isOfServices(s.flow.Dest.Addr()) {
		return false
	}
	_, ok := s.frontend(s.flow, true)
	return !ok && !s.isOfPods(s.flow)
}

// isOfPods reports whether the row of a flow is a pod's.
func (n *Node) isOfPods(flow Flow) bool {
	row := n.Open[flow]
	if row == nil {
		row = n.Pending[flow]
	}
	return row != nil && row.Inside
}

// answersPod reports whether a packet may be the answer to a flow that a pod dialed: such a packet
// must enter the pod's device at the node's end.
func (n *Node) answersPod(frame []byte) bool {
	p := read(frame)
	if !n.dialed {
		return false
	}
	switch p.content {
	case message:
		return true
	case ported, cut:
		return (p.content == ported || p.l4 == p.l3+p.base() && !p.first && p.flow.Proto == protoTCP) && n.isOfPods(p.flow)
	case fragment:
		flow, ok := n.datagrams[(&step{packet: p}).datagram()]
		return ok && n.isOfPods(flow)
	}
	return false
}

// sendTo sends a packet on to a pod of this node, past the stack if allowed. At the device of a pod that is
// answered, policies are asked there.
func (s *step) sendTo(pod int, at place) {
	frame := s.out.Data
	isAnswer := s.answersPod(frame)
	if s.ttl <= 1 || isAnswer && len(frame) > 14+s.MTU[pod] {
		s.out.Path += ", to a pod by the stack"
		return
	}
	if !isAnswer && s.deniesNext(frame, pod, at) {
		return
	}
	s.goOut(pod, Way{pod, s.PodMACs[pod], s.MACs[pod]})
	s.out.Path += ", to a pod"
}

// sendOut sends a packet out of the node past the stack, if no ICMP error is needed and the device
// is one that is served.
func (s *step) sendOut() {
	p := read(s.out.Data)
	way := s.route(p.flow.Source, p.flow.Dest)
	if s.ttl <= 1 || way.Device == 0 || !s.NatDevices[way.Device] || len(s.out.Data) > 14+s.MTU[way.Device] {
		s.out.Path += ", out by the stack"
		return
	}
	s.goOut(way.Device, way)
	s.out.Path += ", out"
}

// answerItself turns around a pod's answer to itself.
func (s *step) answerItself() {
	if s.ttl <= 1 {
		return
	}
	s.goOut(s.device, Way{s.device, s.PodMACs[s.device], s.MACs[s.device]})
	s.out.Path += ", to itself"
}

// goOut sends a packet on through a device, one hop further.
func (s *step) goOut(device int, way Way) {
	frame := bytes.Clone(s.out.Data)
	if way.known() {
		copy(frame, way.Dest[:])
		copy(frame[6:], way.Source[:])
	}
	s.countHop(frame)
	s.out.Verdict, s.out.Data, s.out.Device = Out, frame, device
}

// What pods must not send, and what stays on their links.
const (
	routerAdvert   = 134
	neighborAdvert = 136
	redirect       = 137
	firstOfLink    = 130
	lastOfLink     = 143
)

// checkAntispoof returns whether the pod may send the packet, the reason if not, and whether the
// packet is for the pod's own link only.
func (s *step) checkAntispoof() (reason Reason, stays bool) {
	if len(s.frame) < 14 {
		return Malformed, false
	}
	if MAC(s.frame[6:12]) != s.PodMACs[s.device] {
		return SpoofedLink, false
	}
	switch binary.BigEndian.Uint16(s.frame[12:]) {
	case 0x0806:
		return s.checkARP()
	case 0x0800, 0x86dd:
	default:
		return Protocol, false
	}
	own := s.Pods[s.flow.Source.Addr()] == s.device
	switch {
	case own && s.isPlain():
	case s.l3 == 0 || s.short || s.content == cut:
		return Malformed, false
	}
	if s.l3 > 0 && s.ends(1).IsLoopback() {
		return Loopback, false
	}
	if s.ends(0).Is4() != s.v4 || s.ends(1).Is4() != s.v4 {
		return Spoofed, false
	}
	if !(own && s.isPlain()) && s.isForged() {
		return Forged, false
	}
	if reason, stays = s.checkContent(); reason != "" || own {
		return reason, stays
	}
	return s.checkForeignSource(stays)
}

// isForged reports whether a pod's packet looks as if a node had forwarded it.
func (s *step) isForged() bool {
	ip := s.frame[s.l3:]
	if s.v4 && len(ip) >= 22 && ip[0]&15 > 5 && ip[20] == option4 || !s.v4 && len(ip) >= 48 && ip[6] == 60 && begins6(ip[40:]) {
		return true
	}
	t, ok := s.readTunnel()
	return ok && (t.mode == DirectGeneve || s.leadsTo(t, s.isNodesFrontend))
}

// ends returns the source or the destination of a packet; IPv4-mapped addresses become the IPv4
// addresses they stand for.
func (s *step) ends(i int) netip.Addr {
	ends := endsOf(s.frame[s.l3:])
	half := len(ends) / 2
	addr, _ := netip.AddrFromSlice(ends[i*half : (i+1)*half])
	return addr.Unmap()
}

// isPlain reports whether a packet from a pod's own address has nothing that needs further parsing.
func (s *step) isPlain() bool {
	ip := s.frame[s.l3:]
	if s.ends(1).IsLoopback() {
		return false
	}
	if s.v4 {
		return ip[0] == 0x45 && (ip[9] == protoTCP || ip[9] == protoICMP)
	}
	return ip[6] == protoTCP
}

// checkARP judges ARP; the generator makes no correct ARP packets.
func (s *step) checkARP() (reason Reason, stays bool) {
	if len(s.frame) < 14+28 {
		return Malformed, false
	}
	return Protocol, false
}

// checkContent judges a packet by what it says, whatever its addresses are.
func (s *step) checkContent() (reason Reason, stays bool) {
	server := uint16(547)
	if s.v4 {
		server = 67
	}
	switch {
	case s.content == ported && s.flow.Proto == protoUDP && s.flow.Source.Port() == server:
		return DHCP, false
	case s.content != message || s.v4:
		return "", false
	}
	icmp := s.frame[s.l4:]
	switch kind := icmp[0]; {
	case kind == routerAdvert || kind == redirect:
		return Router, false
	case kind == neighborAdvert:
		if len(icmp) < 24 {
			return Malformed, false
		}
		target := netip.AddrFrom16([16]byte(icmp[8:]))
		if device, ok := s.Pods[target]; !target.IsLinkLocalUnicast() && (!ok || device != s.device) {
			return Neighbor, false
		}
		return "", false
	default:
		return "", kind >= firstOfLink && kind <= lastOfLink
	}
}

// checkForeignSource judges a packet whose source is not one of the pod's addresses: a link-local
// address, or none yet.
func (s *step) checkForeignSource(ofLink bool) (reason Reason, stays bool) {
	from, to := s.flow.Source.Addr(), s.flow.Dest.Addr()
	if s.v4 {
		if from.IsUnspecified() && s.content == ported && s.flow.Proto == protoUDP && s.flow.Source.Port() == 68 &&
			s.flow.Dest == netip.MustParseAddrPort("255.255.255.255:67") {
			return "", true
		}
		return Spoofed, false
	}
	forLink := to.IsLinkLocalUnicast() || to.IsLinkLocalMulticast() || to.IsInterfaceLocalMulticast()
	if forLink && (from.IsLinkLocalUnicast() || from.IsUnspecified() && ofLink) {
		return "", true
	}
	return Spoofed, false
}
