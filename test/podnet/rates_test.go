package podnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// limitsTwoPods checks that two pods that send at the same time each keep to their own rate.
func (w *oneNode) limitsTwoPods(t *testing.T) {
	for is4, to := range outsiders {
		passed := w.pace(false)
		var sinks []*rig.Process
		for i, p := range w.pods {
			_, all := leaves(float64(w.Rates[p.id].Out), is4)
			sinks = append(sinks, drainAt(t, w.outside, 9+i, all))
			rig.NewChild(t, nil, p.Netns, "pour", netip.AddrPortFrom(to, uint16(9+i)).String(), "4", strconv.Itoa(all), "0")
		}
		for i, p := range w.pods {
			rate := float64(w.Rates[p.id].Out)
			want, _ := leaves(rate, is4)
			requireRate(t, fmt.Sprintf("%.0f Mbit/s beside another, IPv4 %t", rate*8/1e6, is4), drained(t, sinks[i]), want, 0.03)
		}
		w.requireWaiting(t, false, false, passed)
	}
	const within = 0.05
	passed := w.pace(false)
	var wants, got [2]float64
	var alls [2]int
	for i, p := range w.pods {
		wants[i], alls[i] = leavesStreams(t, p.Netns, float64(w.Rates[p.id].Out), true)
	}
	// As in streamsBy.
	for n := 0; n < 5 && (got[0] < wants[0]*(1-within) || got[1] < wants[1]*(1-within)); n++ {
		got = w.streamsOfTwo(t, alls)
	}
	for i, p := range w.pods {
		requireRate(t, fmt.Sprintf("%.0f Mbit/s beside another, by TCP", float64(w.Rates[p.id].Out)*8/1e6), got[i], wants[i], within)
	}
	w.requireWaiting(t, true, false, passed)
}

// streamsOfTwo has two pods send by TCP at the same time, the first one out of the node and the
// second one to the node, and returns at how many bytes a second the data of each came.
func (w *oneNode) streamsOfTwo(t *testing.T, alls [2]int) (got [2]float64) {
	t.Helper()
	var ends [2]func() float64
	for i, p := range w.pods {
		at, to := []*rig.Netns{w.outside, w.ns}[i], []netip.Addr{outsiders[true], nodeAddrs[true]}[i]
		ends[i] = streaming(t, p.Netns, at, to, 1, alls[i])
	}
	for i, end := range ends {
		got[i] = end()
	}
	return got
}

// TestBandwidthDirect checks that a pod's answers to clients outside are kept to its rate too if
// they do not go back through the node that forwarded the requests.
func TestBandwidthDirect(t *testing.T) {
	rig.Root(t)
	needFq(t)
	const rate = 2e6 / 8
	k := newNodesOnLAN(t, lanForm{
		mode: fabric.Native, addr4: true, addr6: true, pods4: true, pods6: true, byPrograms: true, size: 2, rates: map[string]maps.Rates{"p2": {Out: rate}},
	})
	k.announceNodes(k.objects)
	client := rig.NewNetns(t, "client")
	k.connect(t, client, "client")
	rig.Address(t, client, "eth0", "198.51.100.200/24", "2001:db8:1::c8/64")
	front, back, pod := k.nodes[0], k.nodes[1], k.pods[1]
	for _, addr := range k.objects[0].Addrs {
		at := clusterIP(addr.Is4(), 10)
		rig.Route(t, client, netip.PrefixFrom(at, at.BitLen()).String(), addr.String())
		for _, n := range []*node{front, back} {
			n.serveAs(t, maps.LoadBalancer, at, pod.addr[addr.Is4()])
		}
		for _, kind := range []string{"gush", "lavish"} { // by UDP, and by TCP
			server := rig.NewChild(t, nil, pod.Netns, kind, netip.AddrPortFrom(pod.addr[addr.Is4()], 7).String())
			if line, err := server.ReadLine(); err != nil || line != "ready" {
				t.Fatalf("%s: %q, %v", kind, line, err)
			}
		}
	}
	for _, n := range []*node{front, back} {
		n.knowsNodes(t, k.objects)
	}
	for name, by := range map[string]bpf.MapsDsrMode{"IPIP": bpf.MapsDsrModeDSR_IPIP, "Geneve": bpf.MapsDsrModeDSR_GENEVE} {
		for is4, addr := range pod.addr {
			for _, n := range []*node{front, back} {
				n.answerDirectly(t, addr, n == back, by)
			}
			back.part(t, fmt.Sprintf("%s, IPv4 %t", name, is4), nil, func(t *testing.T) {
				answersDirectly(t, client, front, back, clusterIP(is4, 10), float64(back.Rates["p2"].Out))
			})
		}
	}
	by := judgeable(t, "by TCP", streamed(t, k.pods[0].Netns, client, netip.MustParseAddr("198.51.100.200"), 1, 4e6))
	back.rerate(map[string]maps.Rates{pod.id: {Out: uint64(by)}})
	for is4 := range pod.addr {
		back.part(t, fmt.Sprintf("by TCP, IPv4 %t", is4), nil, func(t *testing.T) { streamsDirectly(t, client, front, back, pod, clusterIP(is4, 10)) })
	}
}

// streamsDirectly is answersDirectly for a connection. A result that is too low is measured again,
// as in streamsBy.
func streamsDirectly(t *testing.T, client *rig.Netns, front, back *node, pod *pod, at netip.Addr) {
	t.Helper()
	const within = 0.02
	rate := float64(back.Rates[pod.id].Out)
	want, all := leavesStreams(t, pod.Netns, rate, at.Is4())
	passed, before := back.pace(false), front.transmitted(t)
	got, asked := 0.0, 0
	for n := 0; n < 5 && got < want*(1-within); n++ {
		got = drained(t, rig.NewChild(t, nil, client, "fetch", netip.AddrPortFrom(at, 7).String(), strconv.Itoa(all)))
		asked += all
	}
	requireRate(t, fmt.Sprintf("answers at %.0f Mbit/s by TCP", rate*8/1e6), got, want, within)
	back.requireWaiting(t, true, false, passed)
	if sent := front.transmitted(t) - before; sent > uint64(asked/10) { // the client's acknowledgments go through it
		t.Errorf("the node in front has sent %d bytes of %d that were answered", sent, asked)
	}
}

// answersDirectly checks that the answers from an address come at a rate, and not through the node
// in front.
func answersDirectly(t *testing.T, client *rig.Netns, front, back *node, at netip.Addr, rate float64) {
	t.Helper()
	want, all := leaves(rate, at.Is4())
	answered := func(all int) float64 {
		return drained(t, rig.NewChild(t, nil, client, "beckon", netip.AddrPortFrom(at, 7).String(), strconv.Itoa(all)))
	}
	// Let the nodes learn their neighbors first: while a neighbor is unknown, only a few packets
	// are kept for it.
	answered(2 * datagrams)
	passed := back.pace(false)
	before := front.transmitted(t)
	requireRate(t, fmt.Sprintf("answers at %.0f Mbit/s", rate*8/1e6), answered(all), want, 0.03)
	back.requireWaiting(t, false, false, passed)
	if sent := front.transmitted(t) - before; sent > uint64(all*datagram/10) {
		t.Errorf("the node in front has sent %d bytes of %d that were answered", sent, all*datagram)
	}
}

// answerDirectly makes a backend of all services, on this node or on another, answer clients of
// other nodes directly. Requests reach it in the given encapsulation.
func (n *node) answerDirectly(t *testing.T, backend netip.Addr, local bool, by bpf.MapsDsrMode) {
	t.Helper()
	m, err := maps.Open(datapath.MapsDir(n.Forwarding.BPFFS), false)
	n.must(err)
	defer m.Close()
	tables, err := m.Tables()
	n.must(err)
	defer tables.Close()
	for index := uint32(1); tables.Services[index].Words[0] != 0; index++ {
		tables.Services[index].Flags = tables.Services[index].Flags&^maps.DirectMask | maps.DirectFlags(uint8(by))
		if local {
			tables.Backends[index].Flags |= maps.BackendLocal
			for _, key := range []maps.SvcKey{maps.HostedAddrKey(backend), maps.HostedKey(netip.AddrPortFrom(backend, 7), index)} {
				n.must(tables.Svcs.Update(key, maps.Svc{Service: index, Kind: maps.Hosted}))
			}
		}
	}
}

// knowsNodes tells a node the addresses of all nodes.
func (n *node) knowsNodes(t *testing.T, nodes []*model.Node) {
	t.Helper()
	m, err := maps.Open(datapath.MapsDir(n.Forwarding.BPFFS), false)
	n.must(err)
	defer m.Close()
	cluster := maps.Cluster{Known: true, Nodes: map[netip.Addr]maps.ClusterNode{}}
	for i, node := range nodes {
		for _, addr := range node.Addrs {
			cluster.Nodes[addr] = maps.ClusterNode{Name: uint64(i + 1), Number: uint32(i + 1)}
		}
	}
	_, err = m.SetCluster(cluster)
	n.must(err)
}

// transmitted returns how many bytes the node has sent.
func (n *node) transmitted(t *testing.T) (bytes uint64) {
	t.Helper()
	n.must(n.ns.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			bytes = link.Attrs().Statistics.TxBytes
		}
		return err
	}))
	return bytes
}

// gush answers each datagram with as many datagrams as it asks for, as fast as it can.
func gush(args []string) int {
	err := func() error {
		at, err := net.ResolveUDPAddr("udp", args[0])
		if err != nil {
			return err
		}
		conn, err := net.ListenUDP("udp", at)
		if err != nil {
			return err
		}
		if err := hurry(conn); err != nil {
			return err
		}
		fmt.Println("ready")
		for text := make([]byte, datagram); ; {
			n, from, err := conn.ReadFromUDPAddrPort(text)
			if err != nil {
				return err
			}
			all, err := strconv.Atoi(string(text[:n]))
			if err != nil {
				return err
			}
			for range all / datagrams {
				if _, err := conn.WriteToUDPAddrPort(make([]byte, datagram*datagrams), from); err != nil {
					return err
				}
			}
		}
	}()
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// beckon asks for so many datagrams, and prints at how many bytes a second they come.
func beckon(args []string) int {
	err := func() error {
		all, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		conn, err := net.Dial("udp", args[0])
		if err != nil {
			return err
		}
		udp := conn.(*net.UDPConn)
		if err := errors.Join(setOption(udp, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20), setOption(udp, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)); err != nil {
			return err
		}
		if _, err := udp.Write([]byte(args[1])); err != nil {
			return err
		}
		return timeAll(udp, all)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// linger sends so many datagrams to each of some addresses, so that a second's worth at a rate
// always waits: it sends that much at first, and then as much as the rate lets through.
func linger(args []string) int {
	err := func() error {
		all, err := strconv.Atoi(args[0])
		rate, err2 := strconv.ParseFloat(args[1], 64)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		var conns []net.Conn
		for _, to := range args[2:] {
			conn, err := net.Dial("udp", to)
			if err != nil {
				return err
			}
			defer conn.Close()
			if err := hurry(conn.(*net.UDPConn)); err != nil {
				return err
			}
			conns = append(conns, conn)
		}
		since := time.Now()
		for sent := 0; sent < all; {
			due := int((time.Since(since).Seconds()+1)*rate/datagram/float64(len(conns))) / datagrams * datagrams
			for ; sent < min(due, all); sent += datagrams {
				for _, conn := range conns {
					// Who receives may have had enough.
					if _, err := conn.Write(make([]byte, datagram*datagrams)); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
						return err
					}
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// letsGo checks that when pods no longer have rates, nothing that waits at that time is lost, out
// of the node or within it. A packet or two that is sent while the kernel replaces a queue may be: it
// has none then.
func (w *oneNode) letsGo(t *testing.T) {
	const all = 600 // to either address, for five seconds
	const least = all - 2*datagrams
	rate := float64(w.Rates["a"].Out)
	a, b := w.pods[0], w.pods[1]
	sinks := []*rig.Process{drainAt(t, w.outside, 9, least), drainAt(t, b.Netns, 9, least)}
	source := rig.NewChild(t, nil, a.Netns, "linger", strconv.Itoa(all), fmt.Sprint(rate), netip.AddrPortFrom(outsiders[true], 9).String(),
		netip.AddrPortFrom(b.addr[false], 9).String())
	for _, device := range []string{"eth0", "flpace0"} {
		for until := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			waiting := uint32(0)
			for _, q := range w.queued(device) {
				waiting += q.Attrs().Statistics.Queue.Qlen
			}
			if waiting > 20 {
				break
			}
			if time.Now().After(until) {
				t.Fatalf("%d packets wait at %s", waiting, device)
			}
		}
	}
	w.Rates = nil
	w.restart()
	for i, sink := range sinks {
		// drained waits for that many.
		t.Logf("to %s: %.3f Mbit/s", []string{"outside", "another"}[i], drained(t, sink)*8/1e6)
	}
	w.must(source.Wait())
	if left := len(w.queued("eth0")); left > 0 {
		t.Errorf("eth0 has %d queues left", left)
	}
}

// limitsProxied checks that what a pod sends to a proxy on its node is kept to its rate, and
// therefore what the proxy sends on. A proxy that has to wait on a busy machine catches up on
// nothing, so a result that is too low is measured again.
func (d *oneNodeWithProxies) limitsProxied(t *testing.T) {
	needFq(t)
	const rate, within = 10e6 / 8, 0.05
	d.begin("mesh", "15001")
	d.annotate("fairlead.io/l7-proxy: mesh, kubernetes.io/egress-bandwidth: 10M")
	d.has("port 15001")
	for is4, to := range outsiders {
		want, all := leavesStreams(t, d.a.Netns, rate, is4)
		var got float64
		for n := 0; n < 5 && got < want*(1-within); n++ {
			got = streamed(t, d.a.Netns, d.outside, to, 1, all)
		}
		requireRate(t, "by its proxy to "+to.String(), got, want, within)
	}
}

// TestPieces checks that a pod that starts with a rate makes packets of no more than the rate lets
// through in four milliseconds, so that its other packets need not wait for long, and that other
// pods make packets of the usual size.
func TestPieces(t *testing.T) {
	w := newOneNodeOf(t, true, func(s *agentConfig) { s.Rates = map[string]maps.Rates{"a": {Out: 2.5e6}} })
	for i, want := range []uint32{10_000, 1 << 16} {
		w.must(w.pods[i].Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err == nil && link.Attrs().GSOMaxSize != want {
				t.Errorf("packets of pod %s have up to %d bytes, want %d", w.pods[i].id, link.Attrs().GSOMaxSize, want)
			}
			return err
		}))
	}
}
