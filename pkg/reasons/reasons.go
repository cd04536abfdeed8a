// Package reasons has the reasons why programs drop or refuse, in words, and how often each occurred.
package reasons

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Reason describes a reason that the programs count, for users.
type Reason struct {
	Word  string // as in the programs' enum: "no-backend"
	Stops bool   // the packet is dropped or the call refused; otherwise it continues in a degraded way
	What  string // what happens to the packet or the call
	Cause string
	Cure  string
}

// Effect says in a word or two whether anything got through.
func (r *Reason) Effect() string {
	if r.Stops {
		return "stopped"
	}
	return "carried on"
}

// All returns every reason except "none", in the order of the programs' enum. docs/drops.md is
// generated from it.
func All() []Reason {
	return slices.Concat(reasonsOfServices(), reasonsOfFlows(), reasonsOfPods())
}

// reasonsOfPods returns the reasons for which packets from a pod are stopped at the pod's own
// device.
func reasonsOfPods() []Reason {
	const dropped = "What the pod sent is dropped at its own device."
	return []Reason{
		{
			Word: "no-ports", Stops: true,
			What: "The packet is dropped as it leaves the node.",
			Cause: "A pod sends a protocol other than TCP, UDP, SCTP and ICMP to the outside, where it would need an address of the node. " +
				"Without ports, answers cannot be assigned to a pod. Or an ICMP error or a fragment belongs to no flow that is known.",
			Cure: "If the network outside knows the pods' addresses, say so with `--native-cidrs`. Otherwise run the program that speaks the " +
				"protocol in the host's network.",
		},
		{
			Word: "spoofed", Stops: true, What: dropped + " A packet that comes in from a device is dropped too if it has the source of a flow of one of this node's pods.",
			Cause: "Its source is not one of the pod's addresses. Something in the pod forges addresses, or the pod forwards for others, as a " +
				"router, a VPN or a virtual machine with a network of its own does.",
			Cure: "If the pod is meant to forward, exempt it (docs/pod-network.md says how): this check keeps pods from posing as each other. " +
				"Otherwise look into the pod: `fairlead monitor --reason spoofed` shows what it sends.",
		},
		{
			Word: "spoofed-link", Stops: true, What: dropped,
			Cause: "Its hardware address is not the one that the pod's device was given, or the device is not registered (any more).",
			Cure: "A process in the pod has changed the address of its device, or bridges others: give each its own pod. A few of these after a " +
				"pod has been deleted are harmless.",
		},
		{
			Word: "neighbor", Stops: true, What: dropped,
			Cause: "In ARP or a neighbor advertisement the pod claims an address that belongs to another. That is how to intercept what others " +
				"send.",
			Cure: "Look into the pod: `fairlead monitor --reason neighbor` shows when. Software that moves addresses between hosts " +
				"(keepalived, for example) does this too, and has no use in a pod's own network: use a Service.",
		},
		{
			Word: "router", Stops: true, What: dropped,
			Cause: "A router advertisement or a redirect: the pod tells others to send through it.",
			Cure:  "Turn it off in the pod (radvd, or a container runtime within the pod). Nothing would follow it anyway.",
		},
		{
			Word: "dhcp", Stops: true, What: dropped,
			Cause: "The pod answers as a DHCP server, from UDP port 67 or 547.",
			Cure:  "A server for machines outside needs the host's network (hostNetwork), since a pod is not on the link of those machines.",
		},
		{
			Word: "loopback", Stops: true, What: dropped,
			Cause: "Its destination is a loopback address (127.0.0.0/8 or ::1), which never leaves a host: something tries to reach what listens " +
				"on the node's own loopback addresses.",
			Cure: "Nothing: no honest pod sends this. If it goes on, look into the pod.",
		},
		{
			Word: "protocol", Stops: true, What: "What a pod sent is dropped at its own device, or with hook `tc` what came in by a device of the node.",
			Cause: "The pod's packet is neither ARP nor IP, has a VLAN tag, or its sender told the kernel another protocol than its header says. " +
				"What came in has several priority tags (VLAN 0), behind which a neighbor can hide whom it poses as.",
			Cure: "Nothing, unless something in the pod does not work: the pod network carries only IP. No honest host sends several such tags.",
		},
		{
			Word: "malformed", Stops: true, What: dropped,
			Cause: "It ends within its header, or its header does not match the frame.",
			Cure:  "Nothing, if it is rare. Otherwise a program in the pod builds its own packets, and builds them wrong.",
		},
		{
			Word: "no-proxy", Stops: true, What: dropped + " The packet would open a connection.",
			Cause: "Nothing listens where the pod's connections should go: the proxy that its annotation fairlead.io/l7-proxy names has ended or " +
				"has not started, it listens at other than loopback addresses or not for this family, several processes share its port " +
				"(SO_REUSEPORT) on a kernel before 6.6, or the agent's option `--l7-proxies` has no proxy of that name. On a node with " +
				"proxies this also happens until the Pod object is known.",
			Cure: "`fairlead map dump pods` shows the port, `ss -ltn` on the node what listens there, `fairlead status` the names that are not " +
				"known. If pods may do without the proxy, append `:pass` to it in `--l7-proxies`.",
		},
		{
			Word: "extensions", Stops: true, What: dropped,
			Cause: "The pod has a proxy (annotation fairlead.io/l7-proxy), and the packet has more than six IPv6 extension headers, or more than " +
				"1 KiB of them. It may be TCP, which must not bypass the proxy.",
			Cure: "Nothing: no honest program sends this. If it goes on, look into the pod.",
		},
		{
			Word: "horizon", Stops: true, What: dropped,
			Cause: "The pod sends faster than its annotation kubernetes.io/egress-bandwidth allows, and this packet would have to wait for more " +
				"than two seconds. Or the pods of its namespace or node send faster than the fairlead.io/egress-bandwidth there allows, and " +
				"the packet would have to wait for longer than the pod's class may. Packets of less than 256 bytes on average may wait for less. " +
				"Or the packet's socket has scheduled it for more than two seconds ahead.",
			Cure: "TCP slows down by itself, so a few of these are harmless. Make programs that send datagrams slow down, or raise the " +
				"annotation: `fairlead bandwidth list` shows how much each pod sends, and `fairlead status` whether a device lacks the queue " +
				"in which packets wait.",
		},
		{
			Word: "jam", Stops: true,
			What: "A packet to the pod is dropped: when it comes to the node, or at the device of the pod that it is for or from.",
			Cause: "The pod receives more than its annotation kubernetes.io/ingress-bandwidth allows, and this packet would have to wait for " +
				"more than half a second, or less if packets have less than 256 bytes on average.",
			Cure: "TCP senders are slowed down before anything is lost, unless so many connections send at once that two segments of each are " +
				"more than may wait. Make programs that send datagrams slow down, or raise the annotation: `fairlead bandwidth list` shows " +
				"how much each pod receives.",
		},
		{
			Word: "forged", Stops: true,
			What: "A pod's packet is dropped at its device.",
			Cause: "It looks as if a node had forwarded it to a backend on another node, and the other node would accept it as such (direct " +
				"server return): it has the option of `--dsr=opt`, is IP in IP to a frontend, or is Geneve with the option class 0xff1d.",
			Cure: "Find out what the pod sends: `fairlead monitor` names the pod. If it has tunnels of its own, do not let them lead to " +
				"addresses of Services, and give options of Geneve another class.",
		},
		{
			Word: "tunnel-port", Stops: true,
			What: "A packet for the tunnel between nodes (`--routing=vxlan`, UDP 8472) is dropped: at a pod's device, or as it comes in to this node from a port below 61000.",
			Cause: "A pod sends to the tunnel of a node, or something outside does from a source port that no node's tunnel uses. It may be an " +
				"attempt to pose as other pods. A pod's VXLAN to other pods is not affected.",
			Cure: "Look into the sender: `fairlead monitor --reason tunnel-port`. A VXLAN of your own between pods and nodes needs another port. Nodes that run a version before this check " +
				"send from other ports: [upgrade in two steps](migration.md#from-kube-proxy).",
		},
		{
			Word: "tunnel-source", Stops: true,
			What: "A packet that came out of the tunnel between nodes is dropped.",
			Cause: "It was sent by something whose address no Node object lists, or its source belongs to another node or its pods, or is one " +
				"that no host can have.",
			Cure: "`fairlead map dump cluster_nodes` and `fairlead map dump node_sources` show what is known; `fairlead monitor --reason tunnel-source` shows the packets. " +
				"If a Node has addresses that it does not list, list them. Otherwise somebody forges packets: keep UDP 8472 open to nodes alone.",
		},
		{
			Word: "pod-source", Stops: true,
			What: "A packet that came in by a device of the node, and not by a pod's, is dropped.",
			Cause: "Its source is the address of a pod of this node, which sends by its own device only. Or it is for a pod of this node, or for a " +
				"Service, from a pod of another node, and has not come through the tunnel (`--routing=vxlan`).",
			Cure: "`fairlead monitor --reason pod-source` shows the packets. Somebody on the network forges them, or sends a pod's own packets " +
				"back: have the network filter sources. While nodes change to `--routing=vxlan` one by one, packets from pods of the other " +
				"nodes are dropped.",
		},
	}
}

func reasonsOfServices() []Reason {
	return []Reason{
		{
			Word: "no-backend", Stops: true,
			What: "A socket's connect or send is refused with ECONNREFUSED. A packet from outside is answered by the node as if nothing " +
				"listened there.",
			Cause: "The Service has no endpoint that may be used in the scope that applies: none is ready and none is draining, or its traffic " +
				"policy is Local and none is on this node.",
			Cure: "`fairlead service list` shows Services without backends, and `fairlead explain` which scope applies. Check the readiness of " +
				"the pods. If a load balancer sends traffic to a node without endpoints although the policy is Local, it does not use the " +
				"health check port.",
		},
		{
			Word: "table-race", Stops: true,
			What: "A socket call is refused, or a packet is dropped. The next try succeeds.",
			Cause: "The Service's endpoints changed faster than the program could follow, several times within a microsecond. This is more " +
				"likely if the program was interrupted in between.",
			Cure: "Nothing, if it is rare. If it goes on, find what keeps changing the EndpointSlices: `fairlead status` shows how many passes " +
				"there are.",
		},
		{
			Word: "bad-table", Stops: true,
			What:  "A socket call is refused, or a packet is dropped.",
			Cause: "A row points outside its map: another program wrote into the maps, or this is a bug in fairlead.",
			Cure: "`fairlead verify --repair` finds and repairs it, and the agent does so by itself every minute. Please report it, with the " +
				"output of verify.",
		},
		{
			Word:  "no-memory",
			What:  "The connection is made, but its getpeername, and the sender of its datagrams, show the backend instead of the Service.",
			Cause: "The kernel had no memory to record what the socket dialed.",
			Cure:  "Find what uses up the node's memory, or the limit of the pod's cgroup, which pays for the record.",
		},
		{
			Word: "node-port", Stops: true,
			What: "A bind of a process on the node is refused, as if the port were in use.",
			Cause: "The port is a NodePort of a Service. A process that listened there could not be reached at the node's addresses, because the " +
				"Service answers first.",
			Cure: "Give the process another port, or the Service another nodePort. `fairlead service list` shows which Service has it.",
		},
		{
			Word: "cluster-ip", Stops: true,
			What:  "The packet is dropped.",
			Cause: "A client outside the cluster sends to a ClusterIP, which is for clients inside.",
			Cure: "From outside, use a NodePort or a load balancer address. If you do want ClusterIPs to work for everyone and the network " +
				"routes such addresses here, set `--external-clusterip`.",
		},
		{
			Word: "no-service", Stops: true,
			What: "A connection or datagram is refused: connect fails with ECONNREFUSED, a packet is answered by a TCP reset or by ICMP.",
			Cause: "It is for a port that a ClusterIP does not have, perhaps of another protocol, or for an address in the cluster's ServiceCIDRs that no " +
				"Service has, or none that this node knows of yet.",
			Cure: "Find out who still uses the port or address: `fairlead monitor --reason no-service`. `fairlead explain` shows the nearest frontends, " +
				"and `fairlead status` the ranges. If addresses in them are not for Services, correct --service-cidrs.",
		},
		{
			Word: Policy, Stops: true,
			What: "A packet to or from a pod is dropped at the pod's device, before anybody sees it.",
			Cause: "A NetworkPolicy or ClusterNetworkPolicy denies it, or isolates the pod and no rule accepts it. Right after a pod has started it may " +
				"be that the agent does not know the pod yet; then the sender's next attempt goes through. A fragment whose first fragment was not seen, and " +
				"an IPv6 packet with more extension headers than are read, are dropped too if policies are about the pod.",
			Cure: "`fairlead monitor --reason policy` shows the packets, with the policy and its rule, `fairlead policy explain` what policies say about two addresses. Change the policy if it denies what has to work.",
		},
		{
			Word:  PolicyAudit,
			What:  "A packet goes on that policies would deny.",
			Cause: "Policies are only audited on this node.",
			Cure:  "None is needed. Before you enforce policies, change those that would deny what has to work.",
		},
		{
			Word: "source-range", Stops: true,
			What: "The packet is dropped, and an existing flow ends.",
			Cause: "The client is not in the Service's spec.loadBalancerSourceRanges. A client that comes through another NAT first, such as " +
				"another node's, has that one's address.",
			Cure: "If the client should get in, add its range: `fairlead map dump src_ranges` shows the ranges. Otherwise this is the filter at " +
				"work.",
		},
	}
}

func reasonsOfFlows() []Reason {
	return []Reason{
		{
			Word: "fragment", Stops: true,
			What: "The packet is dropped.",
			Cause: "It is the first fragment of a packet to a Service, and ends within the TCP or SCTP header, which no honest sender produces. " +
				"Or it is SCTP whose port has to be translated, which cannot be done: the new checksum depends on how many bytes are still to " +
				"come.",
			Cure: "For SCTP: give the Service the same port as its pods, or make sure that the sender knows the MTU, so that it sends no " +
				"fragments. Otherwise nothing: it is a scan, or an attempt to get past a filter.",
		},
		{
			Word: "ttl", Stops: true,
			What:  "The packet is dropped, and its sender gets an ICMP error.",
			Cause: "Its TTL (IPv6: hop limit) has run out. A traceroute does that on purpose; otherwise there is a loop.",
			Cure:  "Trace the route between the nodes and to the backends: each packet should pass a node once on its way.",
		},
		{
			Word: "too-big", Stops: true,
			What: "The packet is dropped, and ICMP tells its sender how much the next link takes.",
			Cause: "The path to the backend has a smaller MTU than the path here, and the packet may not be fragmented: it is IPv6, has the " +
				"don't-fragment flag, or would be forwarded with `--dsr`. This is how senders find the MTU of a path, once for each path.",
			Cure: "Nothing, unless it goes on: then something between here and the sender drops ICMP, or the sender ignores it. Let ICMP pass, " +
				"or give both links the same MTU.",
		},
		{
			Word: "stray", Stops: true,
			What: "The packet is dropped.",
			Cause: "Another node forwarded it with `--dsr` for a backend on this node to answer, but the address that the client connected to is " +
				"no frontend that this node knows, or the packet is a reply, which nodes don't forward. Or it was given back (see " +
				"`dsr-returned`) for a flow that has gone on for more than half a minute. Nodes learn of a change one after another, so a few " +
				"of these are harmless. The packets may also be forged.",
			Cure: "If it goes on, compare `fairlead service list` on both nodes, and check whether this node's agent follows the API server.",
		},
		{
			Word: "dsr-returned",
			What: "The packet continues through the node that forwarded it here with `--dsr`, which gives the flow its own address as source " +
				"(SNAT). It is counted on the backend's node, once for most flows.",
			Cause: "A reply to the client would not leave by a device on which it can get the right source address: the client is a process or a " +
				"pod of this node, or is reached through a device that is not in `--devices`. Or the Service that the client dialed has no " +
				"such backend here, as far as this node knows: nodes learn of endpoints one after another.",
			Cure: "Nothing, if these are clients in the cluster. For clients outside, add the device that leads to them to `--devices`. Until " +
				"then their backends see a node's address.",
		},
		{
			Word: "no-port", Stops: true,
			What: "The first packet of a flow is dropped, and its client gets a TCP reset, or else an ICMP error (port unreachable; both " +
				"families), as from a service without backends. A client that tries again may succeed.",
			Cause: "Nearly every port that this node may use toward one backend on another node is in use, or, for packets of pods, toward one " +
				"address, port and protocol outside. The ports are taken by flows that are established, or by flows of clients that have " +
				"fewer ports than this one. If pods are masqueraded, half of `--snat-ports` is for clients outside and half for pods, and one " +
				"pod may use half of the latter.",
			Cure: "`fairlead status` names the destination, and whose flows use its ports. Use more backends, or spread the clients over more " +
				"nodes. externalTrafficPolicy: Local and `--dsr` need no port. Look for flows that never end, and for a pod that opens many: " +
				"`fairlead conntrack list` shows them. A larger `--snat-ports` has more room, and `--conntrack-max` has nothing to do with it.",
		},
		{
			Word: "port-taken",
			What: "A new flow takes the port of another flow, which was not established and is forgotten. Its bytes are not counted.",
			Cause: "Nearly every port toward one destination is in use, as with `no-port`: a client opens flow after flow, or somebody floods " +
				"with first packets from forged addresses. The client's own flows lose their ports first, then those that were begun or " +
				"answered longest ago. Established flows keep theirs.",
			Cure: "Find who opens so many: `fairlead conntrack list`. With very many a second, or where answers take long, flows lose their " +
				"ports before they are established: a larger `--snat-ports` helps.",
		},
		{
			Word: "no-address", Stops: true,
			What:  "The packet is dropped.",
			Cause: "The backend is on another node, and this node has no address of its family to send from.",
			Cure: "Give the node's devices an address of the family (`fairlead status`), or the Service endpoints of a family that the node " +
				"has.",
		},
		{
			Word: "flow-race", Stops: true,
			What:  "The packet is dropped. TCP sends it again, and then it goes through.",
			Cause: "The row of the flow changed while it was read, or another flow took the port that identified this one.",
			Cure:  "Nothing, if it is rare. A flood of half-open flows makes it more frequent: see `flows-full` and `no-port`.",
		},
		{
			Word:  "flows-full",
			What:  "The packet goes through, but other flows can still push its flow out.",
			Cause: "There is no room for another established flow. At the hook pod it may also be that the pod has its share of the flows that policies accepted.",
			Cure: "Use `fairlead conntrack list` to find what opens the flows. The table grows by itself up to `--conntrack-max`, which " +
				"`fairlead status` shows: raise it if the node has the memory. Flows that have ended make room by themselves after a while. " +
				"If it is the share of a pod, `fairlead status` names the pod: have it keep fewer flows open, or spread such pods over more nodes.",
		},
	}
}

// WritePage writes docs/drops.md.
func WritePage(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`<!-- Generated from pkg/reasons/reasons.go: go test ./pkg/reasons -run TestReasons -update -->

# What is dropped, and why

Whatever the programs drop or refuse is counted once, with the hook where that happened and the reason:

- ` + "`fairlead drops`" + ` shows the counts, and ` + "`fairlead drops --watch`" + ` how they grow.
- The metrics ` + "`fairlead_drop_packets_total`" + ` and ` + "`fairlead_drop_bytes_total`" + ` have them with the labels ` + "`hook`" + ` and ` + "`reason`" + `.
- ` + "`fairlead monitor --reason WORD`" + ` shows the packets themselves, of ` + "`tc`" + `, ` + "`xdp`" + ` and ` + "`pod`" + `, as they come.

The hooks are ` + "`sock`" + `, where socket calls count as packets without bytes, ` + "`tc`" + `, ` + "`xdp`" + ` and ` + "`pod`" + `. Reasons marked "carried
on" are not drops: the packet or call went through, in a degraded way.

| reason | what it counts |
|---|---|
`)
	list := All()
	for i := range list {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", list[i].Word, list[i].Word, list[i].Effect())
	}
	for i := range list {
		r := &list[i]
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n**Cause.** %s\n\n**Cure.** %s\n", r.Word, r.What, r.Cause, r.Cure)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
