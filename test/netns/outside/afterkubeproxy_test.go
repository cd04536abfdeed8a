package outside

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/flowtable"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// clusterIP is the address of a service that the rules below also serve.
var clusterIP = family{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::10")}

// proxyRules are kube-proxy's rules, as far as a connection meets them.
const proxyRules = `
table inet kube-proxy {
	chain services {
		ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 80 dnat ip to 10.244.2.5:8080
		ip6 daddr fd96::10 meta l4proto { tcp, udp } th dport 80 dnat ip6 to [fd02:2::5]:8080
		fib daddr type local meta l4proto { tcp, udp } th dport 30001 jump to-pod-a
		fib daddr type local meta l4proto { tcp, udp } th dport 30002 jump to-pod-b
	}
	chain to-pod-a {
		meta mark set meta mark or 0x4000
		meta nfproto ipv4 meta l4proto { tcp, udp } dnat ip to 10.244.1.5:8080
		meta nfproto ipv6 meta l4proto { tcp, udp } dnat ip6 to [fd02:1::5]:8080
	}
	chain to-pod-b {
		meta mark set meta mark or 0x4000
		meta nfproto ipv4 meta l4proto { tcp, udp } dnat ip to 10.244.2.5:8080
		meta nfproto ipv6 meta l4proto { tcp, udp } dnat ip6 to [fd02:2::5]:8080
	}
	chain prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain output { type nat hook output priority -100; jump services; }
	chain postrouting {
		type nat hook postrouting priority srcnat
		meta mark and 0x4000 != 0 masquerade
	}
	chain forward {
		type filter hook forward priority filter
		ct state invalid drop
	}
}
`

// nodeAfterKubeProxy is a node that kube-proxy serves at first, and clients of a service there.
type nodeAfterKubeProxy struct {
	*nodesBehindRouter
	xdp     string
	clients []importedClient
}

type importedClient struct {
	name   string
	dials  family
	port   uint16
	inside bool // a process of the node, or a pod on another plugin's network
	udp    bool
	*child[order, seen]
}

func (c importedClient) String() string {
	if c.udp {
		return c.name + " by UDP"
	}
	return c.name
}

// isOutside reports whether the client is outside the node and uses TCP.
func (c importedClient) isOutside() bool { return !c.inside && !c.udp }

func newNodeAfterKubeProxy(t *testing.T, xdp string) *nodeAfterKubeProxy {
	t.Helper()
	f := &nodeAfterKubeProxy{xdp: xdp, nodesBehindRouter: newNodesBehindRouter(t, settings{xdp: xdp, sums: true})}
	f.leave()
	f.nft(proxyRules)
	for _, v6 := range []bool{false, true} {
		f.process(f.pods[0]).do(order{Serve: podA.at(v6, 8080)})
		f.process(f.pods[1]).do(order{Serve: podB.at(v6, 8080)})
	}
	inside := func(n *rig.Netns) *child[order, seen] {
		return &child[order, seen]{t, rig.NewChild(t, f.nodes[0].cgroup, n, "sockets")}
	}
	for _, udp := range []bool{true, false} {
		f.clients = append(f.clients,
			importedClient{"node to ClusterIP", clusterIP, 80, true, udp, inside(f.a)},
			importedClient{"node to NodePort", nodeA, toPodB, true, udp, inside(f.a)},
			importedClient{"pod to ClusterIP", clusterIP, 80, true, udp, inside(f.pods[0])},
			importedClient{"outside to a pod of the node", nodeA, toPodA, false, udp, f.process(f.client)},
			importedClient{"outside to a pod of another", nodeA, toPodB, false, udp, f.process(f.client)},
		)
	}
	return f
}

// install starts an agent that serves what the rules do. Between the agent's reading of the stack's
// connections and its first frontend, every client opens two more connections, numbered from
// meanwhile on.
func (f *nodeAfterKubeProxy) install(meanwhile int) (first []seen) {
	f.t.Helper()
	f.onA = f.startNode(0, settings{xdp: f.xdp})
	services := f.services()
	f.onA.do(nodeOrder{Ready: services})
	first = f.open(meanwhile)
	f.brief("by the rules", false)
	// A row for each direction, as the client and as the server sees it, for twice two connections
	// of each of three clients of NodePorts, by TCP and by UDP, and for the brief ones.
	const lasting = 2 * 2 * 2 * 2 * 3 * 2
	f.onA.do(nodeOrder{Established: lasting + 2*2*2})
	for _, s := range services {
		f.onA.do(nodeOrder{Service: &s})
	}
	f.onA.do(nodeOrder{Left: lasting})
	f.brief("when it is over", true)
	return first
}

// brief has a client outside open a connection from its own port, which ends before the agent has
// heard of it, and checks whether the agent or the rules serve it.
func (f *nodeAfterKubeProxy) brief(when string, byAgent bool) {
	f.t.Helper()
	for _, v6 := range []bool{false, true} {
		got, err := f.process(f.client).try(order{Dial: nodeA.at(v6, toPodA), From: 40001, Bytes: 100, Reset: true})
		if isSeen := got.Client.Addr() == clientAddr.at(v6, 0).Addr(); err != nil || isSeen != byAgent {
			f.t.Errorf("%s, a brief connection %s: the pod sees %s, %v", familyName(v6), when, got.Client, err)
		}
	}
}

// installAgain does so once more, without waiting for anything.
func (f *nodeAfterKubeProxy) installAgain() {
	f.t.Helper()
	f.onA = f.startNode(0, settings{xdp: f.xdp})
	services := f.services()
	f.onA.do(nodeOrder{Ready: services})
	for _, s := range services {
		f.onA.do(nodeOrder{Service: &s})
	}
}

// services are the services in the rules.
func (f *nodeAfterKubeProxy) services() (list []service) {
	for _, v6 := range []bool{false, true} {
		list = append(list,
			service{At: clusterIP.at(v6, 80), Kind: maps.ClusterIP, Backend: podB.at(v6, 8080)},
			service{At: anyAddr.at(v6, toPodA), Kind: maps.NodePort, Backend: podA.at(v6, 8080), Local: true},
			service{At: anyAddr.at(v6, toPodB), Kind: maps.NodePort, Backend: podB.at(v6, 8080)},
		)
	}
	return list
}

// open has every client open two connections, one of each family, and keep them by number.
func (f *nodeAfterKubeProxy) open(number int) (first []seen) {
	f.t.Helper()
	for _, c := range f.clients {
		for i, v6 := range []bool{false, true} {
			got, err := c.try(order{Dial: c.dials.at(v6, c.port), UDP: c.udp, Hold: number + i, Bytes: 100})
			if err != nil {
				f.t.Errorf("%s %s: a new connection: %v", c, familyName(v6), err)
			}
			first = append(first, got)
		}
	}
	return first
}

// goOn checks that connections continue unchanged.
func (f *nodeAfterKubeProxy) goOn(when string, number int, first []seen) {
	f.t.Helper()
	for n, c := range f.clients {
		for i, v6 := range []bool{false, true} {
			bytes := 1 << 20
			if c.udp {
				bytes = 1200
			}
			got, err := c.try(order{Hold: number + i, Bytes: bytes})
			if err != nil || got != first[2*n+i] {
				f.t.Errorf("%s %s, %s: %+v, %v; want %+v", c, familyName(v6), when, got, err, first[2*n+i])
			}
		}
	}
}

func needNFT(t *testing.T) {
	t.Helper()
	rig.Root(t)
	if _, err := exec.LookPath("nft"); err != nil {
		rig.Lacking(t, "cluster", "nft of Debian's package nftables is not installed")
	}
}

// TestAfterKubeProxy checks what docs/migration.md says about the connections that exist when a node
// moves from kube-proxy's rules to an agent, and back: they continue to their end, whichever side
// opened them.
func TestAfterKubeProxy(t *testing.T) {
	needNFT(t)
	for _, xdp := range []string{"off", "generic"} {
		t.Run("xdp "+xdp, func(t *testing.T) { newNodeAfterKubeProxy(t, xdp).goOver() })
	}
}

func (f *nodeAfterKubeProxy) goOver() {
	f.t.Helper()
	byRules := f.open(1)
	f.goOn("with the rules", 1, byRules)

	meanwhile := f.install(7)
	f.samePort(byRules)
	f.goOn("when the agent has started", 1, byRules)
	f.goOn("when it has started since", 7, meanwhile)
	byAgent := f.open(3)
	f.checkServer("the agent", byAgent, true)
	f.goOn("with the agent", 3, byAgent)
	f.restart()
	f.goOn("with another agent", 1, byRules)

	f.closeOne()
	once := f.open(9)
	f.busy(3, func() {
		if n := f.leave(); n < 2*2*2*2 {
			f.t.Errorf("the stack continues %d connections, want four of each client outside, by TCP and by UDP", n)
		}
	})
	f.goOn("when the agent is gone", 3, byAgent)
	f.goOn("when the agent is gone, of which it has seen one answer", 9, once)
	f.goOn("when the agent is gone again", 1, byRules)
	again := f.open(5)
	f.checkServer("the rules", again, false)
	f.busy(5, f.installAgain)
	f.goOn("when there is an agent once more", 5, again)
}

// samePort has the node itself connect from ports that netfilter has given to clients of the same
// server, so that netfilter gives it others.
func (f *nodeAfterKubeProxy) samePort(byRules []seen) {
	f.t.Helper()
	node := f.process(f.a)
	for n, c := range f.clients {
		if !c.isOutside() || c.port != toPodB {
			continue
		}
		for i, v6 := range []bool{false, true} {
			got, err := node.try(order{Dial: podB.at(v6, 8080), From: byRules[2*n+i].Client.Port(), Bytes: 100})
			if err != nil || got.Client == byRules[2*n+i].Client {
				f.t.Errorf("%s from port %d: %v, %v", familyName(v6), byRules[2*n+i].Client.Port(), got, err)
			}
		}
	}
}

// closeOne has a client outside open a connection and close it: it need not continue.
func (f *nodeAfterKubeProxy) closeOne() {
	f.t.Helper()
	c := f.clients[len(f.clients)-1]
	for _, v6 := range []bool{false, true} {
		if _, err := c.try(order{Dial: c.dials.at(v6, c.port), Bytes: 100}); err != nil {
			f.t.Errorf("%s %s: a connection that ends: %v", c.name, familyName(v6), err)
		}
	}
}

// busy has clients outside connect, and send on connections that they hold from a number on,
// without a pause while fn runs. No request may fail.
func (f *nodeAfterKubeProxy) busy(number int, fn func()) {
	f.t.Helper()
	var over atomic.Bool
	var clients sync.WaitGroup
	defer clients.Wait()
	defer over.Store(true)
	ask := func(c *child[order, seen], o order) {
		clients.Go(func() {
			for n, last := 0, false; !last; n++ {
				last = over.Load()
				if _, err := c.try(o); err != nil {
					f.t.Errorf("request %d of %+v: %v", n, o, err)
					return
				}
			}
		})
	}
	ask(f.process(f.client), order{Dial: nodeA.at(false, toPodA), Bytes: 5})
	ask(f.process(f.client), order{Dial: nodeA.at(true, toPodB), Bytes: 5})
	for n, c := range f.clients {
		if c.isOutside() {
			ask(c.child, order{Hold: number + n%2, Bytes: 5}) // one of each family
		}
	}
	fn()
}

// restart kills the agent, and starts another over what it left.
func (f *nodeAfterKubeProxy) restart() {
	f.t.Helper()
	f.onA.process.Kill()
	if err := f.onA.process.Wait(); err == nil {
		f.t.Fatal("a killed agent exited without an error")
	}
	f.onA = f.startNode(0, settings{xdp: f.xdp})
}

// checkServer checks who serves new connections: with an agent, a pod of its own node sees the
// client's address; with the rules it sees the node's.
func (f *nodeAfterKubeProxy) checkServer(who string, met []seen, clientIsSeen bool) {
	f.t.Helper()
	for n, c := range f.clients {
		if c.inside || c.port != toPodA {
			continue
		}
		for i, v6 := range []bool{false, true} {
			if isSeen := met[2*n+i].Client.Addr() == clientAddr.at(v6, 0).Addr(); isSeen != clientIsSeen {
				f.t.Errorf("%s %s: the pod sees %s, so %s does not serve it", c, familyName(v6), met[2*n+i].Client, who)
			}
		}
	}
}

// leave ends the agent of node a and removes what it left. It returns the number of connections
// that the stack continues.
func (f *nodeAfterKubeProxy) leave() int {
	f.t.Helper()
	f.onA.process.Kill()
	var over flowtable.Exported
	err := f.a.Do(func() (err error) {
		over, err = datapath.Cleanup(f.nodes[0].bpffs)
		return err
	})
	if err != nil || over.Left != nil {
		f.t.Fatal(err, over.Left)
	}
	return over.Connections
}

// nft loads netfilter rules on node a.
func (w *nodesBehindRouter) nft(rules string) {
	w.t.Helper()
	err := w.a.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}
