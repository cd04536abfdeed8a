package podnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// silence is how long those ask that are to get no answer: less than TCP waits before it
// retransmits, so that each asks once.
const silence = 700 * time.Millisecond

// knock asks at many places at once, each for as long as the place says, and prints the answers.
func knock(args []string) int {
	answers := make([]string, len(args))
	var asked sync.WaitGroup
	for i, place := range args {
		asked.Go(func() { answers[i] = answerAt(place) })
	}
	asked.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		return 1
	}
	return 0
}

func answerAt(place string) string {
	parts := strings.Split(place, "/")
	limit, err := time.ParseDuration(parts[0])
	if err != nil {
		return err.Error()
	}
	from, err := ask(parts[1], parts[2], limit)
	var late net.Error
	switch {
	case errors.As(err, &late) && late.Timeout():
		return "nothing"
	case err != nil:
		return err.Error()
	}
	return from
}

// guarded is nodes on a LAN with a server on each node; the packets of the last node bypass its stack.
// On the first node, a policy lets one client reach the servers and another not; on the last is
// another client that it does not let.
type guarded struct {
	*nodesOnLAN
	tunnels bool   // carry packets to pods on other nodes
	servers []*pod // by node
	clients []client
	outside *rig.Netns // on the link of the nodes
}

type client struct {
	*pod
	role string
	node int
}

func newGuarded(t *testing.T, l lanForm) *guarded {
	t.Helper()
	g := &guarded{nodesOnLAN: newServingNodesOnLAN(t, l), tunnels: l.mode == fabric.VXLAN}
	g.announceNodes(g.objects)
	near, past, allowed := g.nodes[0].pod("near"), g.nodes[2].pod("past"), g.nodes[0].pod("allowed")
	g.nodes[0].mustAdd(near)
	g.nodes[0].mustAdd(allowed)
	g.nodes[2].mustAdd(past)
	listenIn(t, near.Netns)
	listenIn(t, past.Netns)
	g.servers = []*pod{near, g.pods[1], past}
	g.clients = []client{{g.pods[0], "denied", 0}, {allowed, "allowed", 0}, {g.pods[2], "denied", 2}}
	g.outside = rig.NewNetns(t, "outside")
	g.connect(t, g.outside, "outside")
	rig.Address(t, g.outside, "eth0", outsiders[true].String()+"/24", outsiders[false].String()+"/64")
	for is4 := range outsiders {
		for i, server := range g.servers {
			g.nodes[0].serve(t, clusterIP(is4, 10+i), server.addr[is4])
			g.nodes[2].serve(t, clusterIP(is4, 10+i), server.addr[is4])
			balancer := clusterIP(is4, 20+i)
			g.nodes[0].serveAs(t, maps.LoadBalancer, balancer, server.addr[is4])
			rig.Route(t, g.outside, netip.PrefixFrom(balancer, balancer.BitLen()).String(), g.addrOf(0, is4).String())
		}
	}
	return g
}

// addrOf returns the address of a node.
func (g *guarded) addrOf(node int, is4 bool) netip.Addr {
	at := slices.IndexFunc(g.objects[node].Addrs, func(a netip.Addr) bool { return a.Is4() == is4 })
	return g.objects[node].Addrs[at]
}

// firstTo returns the address that the first node has toward the server on a node. Its end of a
// tunnel has the first address of its pods' network.
func (g *guarded) firstTo(node int, is4 bool) netip.Addr {
	if !g.tunnels || node == 0 {
		return g.addrOf(0, is4)
	}
	at := slices.IndexFunc(g.objects[0].PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() == is4 })
	return g.objects[0].PodCIDRs[at].Addr()
}

// publish adds the namespace and the pods, which are labeled by their role, to an API server.
func (g *guarded) publish(t *testing.T, s *objectServer) {
	t.Helper()
	s.change(t, namespacesPath, watch.Added, &corev1.Namespace{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "shop"},
	})
	pods := slices.Clone(g.clients)
	for node, p := range g.servers {
		pods = append(pods, client{p, "server", node})
	}
	for _, p := range pods {
		o := &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: p.id, Namespace: "shop", Labels: map[string]string{"role": p.role}},
			Spec:       corev1.PodSpec{NodeName: g.objects[p.node].Name},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		}
		for _, addr := range p.addr {
			o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: addr.String()})
		}
		s.change(t, podsPath, watch.Added, o)
	}
}

// policy lets one of the clients and the host outside reach the servers, and nothing else.
func policy() *networkingv1.NetworkPolicy {
	pods := func(role string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"role": role}}
	}
	from := []networkingv1.NetworkPolicyPeer{{PodSelector: pods("allowed")}}
	for _, addr := range outsiders {
		from = append(from, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: netip.PrefixFrom(addr, addr.BitLen()).String()}})
	}
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: "few", Namespace: "shop"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: *pods("server"), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: from}},
		},
	}
}

// caller asks servers in one way.
type caller struct {
	who   string
	from  *rig.Netns
	group *rig.Cgroup                           // Services are translated at its sockets; nil: in packets
	at    func(is4 bool, server int) netip.Addr // whom it asks
	seen  func(is4 bool, server int) netip.Addr // the source address that servers see
	may   func(server int) bool                 // whether the policy allows it
}

// callers returns a caller for each client that the policy is about and each way to the servers.
func (g *guarded) callers() (list []caller) {
	direct := func(is4 bool, server int) netip.Addr { return g.servers[server].addr[is4] }
	service := func(is4 bool, server int) netip.Addr { return clusterIP(is4, 10+server) }
	balancer := func(is4 bool, server int) netip.Addr { return clusterIP(is4, 20+server) }
	firstNode := func(is4 bool, server int) netip.Addr { return g.firstTo(server, is4) }
	balanced := func(is4 bool, server int) netip.Addr {
		if server == 0 {
			return outsiders[is4]
		}
		return g.firstTo(server, is4)
	}
	onFirst := func(server int) bool { return server == 0 }
	for _, p := range g.clients {
		who := fmt.Sprintf("%s, on node %d", p.role, p.node+1)
		own := func(is4 bool, _ int) netip.Addr { return p.addr[is4] }
		may := func(int) bool { return p.role == "allowed" }
		list = append(list,
			caller{who, p.Netns, nil, direct, own, may},
			caller{who + ", a Service by packets", p.Netns, nil, service, own, may},
			caller{who + ", a Service by sockets", p.Netns, g.nodes[p.node].group, service, own, may})
	}
	return append(list,
		// kube-network-policies accepts packets of root's processes, such as a kubelet, on their
		// own node.
		caller{"node 1", g.nodes[0].ns, nil, direct, firstNode, onFirst},
		// A server on another node sees the host outside under the address of the node that it
		// asked.
		caller{"somebody outside", g.outside, nil, balancer, balanced, onFirst})
}

// ask has all callers ask every server by every protocol at once. Where a policy is enforced,
// callers that it does not allow get no answer. It returns how many requests to each server were in
// vain.
//
// One datagram is sent for each answer, so none of them may be lost, with one exception: on a busy machine,
// kube-network-policies sometimes accepts a packet, counts it, and never tells the kernel, since it gives up to send a
// verdict after 100 ms. The kernel then holds the packet, and says how many it holds.
func (g *guarded) ask(t *testing.T, when string, enforced func(server int) bool) (vain [3]int) {
	t.Helper()
	var asked sync.WaitGroup
	var lost [3]atomic.Int64 // datagrams without an answer, by server
	for _, c := range g.callers() {
		var places, want []string
		var servers []int
		for is4 := range outsiders {
			for server := range g.servers {
				for _, protocol := range []string{"tcp", "udp-small"} {
					limit, seen := patience, c.seen(is4, server).String()
					if enforced(server) && !c.may(server) {
						limit, seen = silence, "nothing"
						vain[server]++
					}
					places = append(places, fmt.Sprintf("%s/%s/%s", limit, protocol, netip.AddrPortFrom(c.at(is4, server), 7)))
					want, servers = append(want, seen), append(servers, server)
				}
			}
		}
		asked.Go(func() {
			var got []string
			answers, err := rig.RunChild(c.group, c.from, "knock", places...)
			if err := errors.Join(err, json.Unmarshal([]byte(answers), &got)); err != nil {
				t.Errorf("%s: %s: %v", when, c.who, err)
				return
			}
			for i, place := range places {
				switch {
				case got[i] == want[i]:
				case got[i] == "nothing" && strings.Contains(place, "/udp"):
					lost[servers[i]].Add(1)
					t.Logf("%s: %s asks at %s and is not answered", when, c.who, place)
				default:
					t.Errorf("%s: %s asks at %s and is answered %s, not %s", when, c.who, place, got[i], want[i])
				}
			}
		})
	}
	asked.Wait()
	for node, n := range g.nodes {
		count, held := int(lost[node].Load()), enforcer{n}.holds()
		if count > held {
			t.Errorf("%s: %d datagrams to %s were not answered, and only %d wait for a verdict there", when, count, g.objects[node].Name, held)
		} else if held > 0 {
			t.Logf("%s: kube-network-policies on %s has left %d packets without a verdict", when, g.objects[node].Name, held)
		}
	}
	return vain
}

// TestNetworkPolicy checks that kube-network-policies enforces a NetworkPolicy on nodes whose
// packets go through the stack, in whatever way a server is asked: by its own address or a
// Service's, on its node or from another, by routes or through a tunnel. On a node whose packets bypass the stack, it knows the
// policy too but sees none of them. Its counters show that those without an answer were dropped and
// not just late.
func TestNetworkPolicy(t *testing.T) {
	rig.Root(t)
	needQueue(t)
	for _, mode := range []string{fabric.Native, fabric.VXLAN} {
		t.Run(mode, func(t *testing.T) {
			enforcing(t, lanForm{mode: mode, addr4: true, addr6: true, pods4: true, pods6: true, byPrograms: true, byStack: true, lastPast: true})
		})
	}
}

// watch lists the packets from now on, and what the nodes have counted, if the test fails.
func (g *guarded) watch(t *testing.T) {
	t.Helper()
	namespaces := []*rig.Netns{g.outside}
	for _, n := range g.nodes {
		namespaces = append(namespaces, n.ns)
	}
	for _, p := range g.servers {
		namespaces = append(namespaces, p.Netns)
	}
	log := logPackets(t, namespaces...)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		t.Log(log.list())
		for i, n := range g.nodes {
			accepted, dropped := enforcer{n}.counts()
			t.Logf("%s: %d packets were let through, %d were not\n%s", g.objects[i].Name, accepted, dropped, n.losses())
		}
	})
}

func enforcing(t *testing.T, l lanForm) {
	g, objects := newGuarded(t, l), newObjectServer()
	g.publish(t, objects)
	var enforcers []enforcer
	for i, n := range g.nodes {
		enforcers = append(enforcers, newEnforcer(t, n, g.objects[i].Name, objects))
	}
	byStack := func(server int) bool { return server < 2 }
	g.watch(t)

	objects.change(t, policiesPath, watch.Added, policy())
	for i, e := range enforcers {
		e.untilChecks(g.servers[i].addr, true)
	}
	vain := g.ask(t, "with the policy", byStack)
	for i, e := range enforcers {
		var accepted, dropped int
		e.until(fmt.Sprintf("%s has kept %d away", g.objects[i].Name, vain[i]), func() bool {
			accepted, dropped = e.counts()
			return dropped >= vain[i]
		})
		t.Logf("%s: %d packets were let through, %d were not", g.objects[i].Name, accepted, dropped)
		if byStack(i) != (accepted > 0) || byStack(i) != (dropped > 0) {
			t.Errorf("%s, whose packets meet its stack: %t, has let %d through and %d not", g.objects[i].Name, byStack(i), accepted, dropped)
		}
	}

	objects.change(t, policiesPath, watch.Deleted, policy())
	for i, e := range enforcers {
		e.untilChecks(g.servers[i].addr, false)
	}
	g.ask(t, "without the policy", func(int) bool { return false })
}
