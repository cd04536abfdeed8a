package observe

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Reason is what people are told of a reason that the programs count.
type Reason struct {
	Word  string // as in the programs' enum: "no-backend"
	Stops bool   // the packet is dropped or the call refused; otherwise it is carried on, with less than there should be
	What  string // what becomes of the packet or the call
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

// Reasons returns every reason but "none", in the order of the programs' enum. It is the source of docs/drops.md.
func Reasons() []Reason {
	return slices.Concat(reasonsOfServices(), reasonsOfFlows(), reasonsOfPods())
}

// reasonsOfPods are those for which what a pod sends is stopped at its own device.
func reasonsOfPods() []Reason {
	const dropped = "What the pod sent is dropped at its own device."
	return []Reason{
		{
			Word: "no-ports", Stops: true,
			What: "The packet is dropped as it leaves the node.",
			Cause: "A pod sends a protocol other than TCP, UDP, SCTP and ICMP to the outside, where it would need an address of the node; but without " +
				"ports nobody could tell whose the answers are.",
			Cure: "If the network outside knows the pods' addresses, say so with `--native-cidrs`. Otherwise run what speaks that protocol in the " +
				"host's network.",
		},
		{
			Word: "spoofed", Stops: true, What: dropped + " What comes in by a device with the source of a pod of this node, of a flow of the pod's, is too.",
			Cause: "Its source is none of the pod's addresses. Somebody in the pod forges them, or the pod forwards for others, as a router, a VPN " +
				"or a virtual machine with a network of its own does.",
			Cure: "If the pod is meant to forward, exempt it: the drop is what keeps pods from speaking for each other. Otherwise look into the pod: " +
				"`fairlead monitor --reason spoofed` shows what it sends.",
		},
		{
			Word: "spoofed-link", Stops: true, What: dropped,
			Cause: "Its hardware address is not the one that the pod's device was given, or the device is not registered (any more).",
			Cure: "A process in the pod has changed the address of its device, or bridges others: give each its own pod. After a pod has been deleted, " +
				"a few are nothing.",
		},
		{
			Word: "neighbour", Stops: true, What: dropped,
			Cause: "By ARP or a neighbour advertisement the pod says that an address is its own that is another's. That is how somebody gets to see " +
				"what others send.",
			Cure: "Look into the pod: `fairlead monitor --reason neighbour` shows when. Software that moves addresses between hosts (keepalived, for example) " +
				"does this too, and has no use in a pod's own network: use a Service.",
		},
		{
			Word: "router", Stops: true, What: dropped,
			Cause: "A router advertisement or a redirect: the pod tells others to send by way of it.",
			Cure:  "Turn it off in the pod (radvd, or a container runtime within the pod). Nobody would heed it, but it is not to be heard.",
		},
		{
			Word: "dhcp", Stops: true, What: dropped,
			Cause: "The pod answers as a DHCP server, from UDP port 67 or 547.",
			Cure:  "A server for machines outside needs the host's network (hostNetwork), since what it says is for a link that a pod is not on.",
		},
		{
			Word: "loopback", Stops: true, What: dropped,
			Cause: "It is to an address of loopback (127.0.0.0/8 or ::1), which is on no wire: somebody tries to reach what listens on the node's own.",
			Cure:  "Nothing: no honest pod sends this. Look into the pod if it goes on.",
		},
		{
			Word: "protocol", Stops: true, What: dropped,
			Cause: "It is neither ARP nor IP, or has the tag of a VLAN.",
			Cure:  "Nothing, unless something in the pod is missing: the pod network carries IP alone.",
		},
		{
			Word: "malformed", Stops: true, What: dropped,
			Cause: "It ends within its header, or its header is not what the frame says.",
			Cure:  "Nothing, if it is rare. Otherwise a program in the pod makes packets by itself, and makes them wrong.",
		},
		{
			Word: "no-proxy", Stops: true, What: dropped + " It would open a connection.",
			Cause: "Nobody listens where the pod's connections are to be handed: the proxy that its annotation fairlead.io/l7-proxy names has ended or has not " +
				"started, it listens at other than loopback addresses or not for this family, several processes share its port (SO_REUSEPORT) on a kernel " +
				"before 6.6, or the agent's option `--l7-proxies` has no proxy of that name. On a node with proxies the same holds for the moment until " +
				"the Pod is known.",
			Cure: "`fairlead map dump pods` shows the port, `ss -ltn` on the node who listens there, `fairlead status` names that are not known. If pods may do " +
				"without the proxy, append `:pass` to it in `--l7-proxies`.",
		},
		{
			Word: "horizon", Stops: true, What: dropped,
			Cause: "The pod sends faster than its annotation kubernetes.io/egress-bandwidth lets it, and this packet would have to wait for more than two " +
				"seconds until it may leave; or the pods of its namespace or of the node send faster than fairlead.io/egress-bandwidth of these lets them, and it " +
				"would have to wait for longer than its class may.",
			Cure: "TCP slows down by itself, so a few of these are nothing. What sends datagrams has to slow down, or the annotation to say more: " +
				"`fairlead bandwidth list` shows who sends how much, and `fairlead status` whether a device lacks the queue in which packets wait.",
		},
		{
			Word: "jam", Stops: true,
			What: "What the pod is sent is dropped: as it comes to the node, or at the device of the pod that it is for, or that it is from.",
			Cause: "The pod is sent more than its annotation kubernetes.io/ingress-bandwidth lets it get, and this packet would have to wait for more than " +
				"half a second until it may come there.",
			Cure: "TCP is held up before anything is lost, unless so many connections send at once that two segments of each are more than may wait. " +
				"What sends datagrams has to slow down, or the annotation to say more: `fairlead bandwidth list` shows who gets how much.",
		},
	}
}

func reasonsOfServices() []Reason {
	return []Reason{
		{
			Word: "no-backend", Stops: true,
			What: "A socket's connect or send is refused with ECONNREFUSED. To a packet from outside the node answers that nobody is there.",
			Cause: "The Service has no endpoint that may be used in the scope that applies: none is ready and none is draining, or its " +
				"traffic policy is Local and none is on this node.",
			Cure: "`fairlead service list` shows Services without backends, `fairlead explain` says which scope applies. Look at the pods' " +
				"readiness. A load balancer that sends traffic of policy Local to a node without endpoints does not ask the health check port.",
		},
		{
			Word: "table-race", Stops: true,
			What: "A socket's call is refused, a packet is dropped. The next try goes through.",
			Cause: "The Service's endpoints changed faster than the program could follow, several times within a microsecond. A processor that " +
				"was taken away from the program in between makes this likelier.",
			Cure: "Nothing, if it is rare. If it goes on, find what changes the EndpointSlices without end: `fairlead status` shows how many passes " +
				"there are.",
		},
		{
			Word: "bad-table", Stops: true,
			What:  "A socket's call is refused, a packet is dropped.",
			Cause: "A row leads outside its map: somebody else wrote into the maps, or this is a mistake of fairlead's.",
			Cure: "`fairlead verify --repair` finds and mends it, and the agent does so by itself every minute. Please report it, with what " +
				"verify printed.",
		},
		{
			Word:  "no-memory",
			What:  "The connection is made. Its getpeername, and the sender of its datagrams, are the backend instead of the Service.",
			Cause: "The kernel had no memory for the record of what the socket dialled.",
			Cure:  "Look for what uses up the node's memory, or the limit of the pod's cgroup, which pays for the record.",
		},
		{
			Word: "node-port", Stops: true,
			What: "A bind of a process of the node is refused, as if the port were in use.",
			Cause: "The port is a NodePort of a Service. What listened there would not be reached at the node's addresses, as the Service is " +
				"answered first.",
			Cure: "Give the process another port, or the Service another nodePort. `fairlead service list` shows whose it is.",
		},
		{
			Word: "cluster-ip", Stops: true,
			What:  "The packet is dropped.",
			Cause: "Somebody outside the cluster sends to a ClusterIP, which is for clients inside.",
			Cure: "Use a NodePort or a load balancer's address from outside. `--external-clusterip` lets everybody in, if that is what is " +
				"meant and the network routes such addresses here.",
		},
		{
			Word: "source-range", Stops: true,
			What: "The packet is dropped, and a flow that was there ends.",
			Cause: "The Service's spec.loadBalancerSourceRanges do not have the client. What comes through another NAT first, another node's for " +
				"example, has that one's address.",
			Cure: "Add the client's range if it is meant to get in: `fairlead map dump src_ranges` shows the ranges. Otherwise this is the guard " +
				"at work.",
		},
	}
}

func reasonsOfFlows() []Reason {
	return []Reason{
		{
			Word: "fragment", Stops: true,
			What: "The packet is dropped.",
			Cause: "It is the first fragment of a packet to a Service, and ends within the header of TCP or SCTP, which no honest sender makes. Or it is of SCTP and " +
				"would get another port: its checksum depends on how much is still to come.",
			Cure: "For SCTP: give the Service the port of its pods, or let the sender know the MTU, so that it sends no fragments. Otherwise nothing: " +
				"it is a scan, or an attempt to get past a filter.",
		},
		{
			Word: "ttl", Stops: true,
			What:  "The packet is dropped, and its sender told by ICMP.",
			Cause: "It has made as many hops as it may. A traceroute does that on purpose; otherwise there is a loop.",
			Cure:  "Trace the route between the nodes and to the backends: each packet should pass a node once on its way there.",
		},
		{
			Word: "too-big", Stops: true,
			What: "The packet is dropped, and its sender told by ICMP how much the next link takes.",
			Cause: "The way to the backend has a smaller MTU than the way here, and the packet may not be cut up, or has this node's address by " +
				"then, which the kernel would not take from outside to cut it up. That is how senders find the MTU of a path, once for each.",
			Cure: "Nothing, unless it goes on: then something between here and the sender drops ICMP, or the sender ignores it. Let ICMP pass, " +
				"or give both links one MTU.",
		},
		{
			Word: "stray", Stops: true,
			What: "The packet is dropped.",
			Cause: "Another node forwarded it with `--dsr` for a backend on this node to answer, but what the client dialled is no frontend that is " +
				"known here, or the backend is none at that port. Or it was given back (see `given-back`) for a flow that has gone on for more than half " +
				"a minute. Nodes learn of a change one after another, so a few are nothing; somebody may also forge them.",
			Cure: "If it goes on, compare `fairlead service list` on both nodes, and look whether this node's agent follows the API server.",
		},
		{
			Word: "given-back",
			What: "The packet goes on, by way of the node that forwarded it here with `--dsr`, which gives its flow an address of its own (SNAT). It " +
				"is counted on the backend's node, once for most flows.",
			Cause: "An answer to the client would not leave by a device on which it gets the right source: the client is a process or a pod of this " +
				"node, or is reached by a device that is not in `--devices`.",
			Cure: "Nothing, if these are clients inside. For clients outside, add the device that leads to them to `--devices`: until then their " +
				"backends see a node's address.",
		},
		{
			Word: "no-port", Stops: true,
			What: "The first packet of a flow is dropped; a client that tries again may get through.",
			Cause: "Nearly every port that this node may use towards one backend on another node is in use, some tens of thousands of flows at " +
				"one time.",
			Cure: "Use more backends or spread the clients over more nodes. externalTrafficPolicy: Local needs no port. " +
				"Look for flows that nobody ends.",
		},
		{
			Word: "no-address", Stops: true,
			What:  "The packet is dropped.",
			Cause: "The backend is on another node, and this node has no address of the family from which to send it there.",
			Cure:  "Give the node's devices an address of the family (`fairlead status`), or the Service endpoints of the family that there is.",
		},
		{
			Word: "flow-race", Stops: true,
			What:  "The packet is dropped. TCP sends it again, and then it goes through.",
			Cause: "The row of the flow changed while it was read, or another flow took the port that this one was told by.",
			Cure:  "Nothing, if it is rare. A flood of half-open flows makes it more frequent: see `flows-full` and `no-port`.",
		},
		{
			Word:  "flows-full",
			What:  "The packet goes through, and its flow stays among those that others can push out.",
			Cause: "There is no room for another established flow.",
			Cure: "Look at `fairlead conntrack list` for what opens the flows. The table grows by itself up to `--conntrack-max`, which `fairlead status` " +
				"shows: set more if the node has the memory. Flows that have ended make room by themselves after a while.",
		},
	}
}

// WriteReasons writes docs/drops.md.
func WriteReasons(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`<!-- Generated from pkg/observe/reasons.go: go test ./pkg/observe -run TestReasons -update -->

# What is dropped, and why

Whatever the programs do not carry is counted once, by the hook where it ended and by its reason:

- ` + "`fairlead drops`" + ` shows the counts, and ` + "`fairlead drops --watch`" + ` how they grow.
- The metrics ` + "`fairlead_drop_packets_total`" + ` and ` + "`fairlead_drop_bytes_total`" + ` have them with the labels ` + "`hook`" + ` and ` + "`reason`" + `.
- ` + "`fairlead monitor --reason WORD`" + ` shows the packets themselves, of ` + "`tc`" + ` and ` + "`xdp`" + `, as they come.

The hooks are ` + "`sock`" + `, where socket calls count as packets without bytes, ` + "`tc`" + ` and ` + "`xdp`" + `. Two reasons are not drops: what they count was
carried on.

| reason | what it counts |
|---|---|
`)
	list := Reasons()
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
