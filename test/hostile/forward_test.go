package hostile

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// webPort is where the backends below serve, and frontPort where clients dial them.
const webPort, frontPort = 8080, 80

// TestForwarded is the attack of a pod, and then of a host that is no node, that send in the formats
// in which nodes forward what a client is said to have dialed, and name the backend that is to get
// the client's packets from then on: an accomplice that is no backend of the Service, or one of its
// own. Nothing of that is believed: no flow begins, and when the client dials from that port it
// reaches its Service. An option has no sender; it makes a flow like the client's own packet.
func TestForwarded(t *testing.T) {
	w := newNodesOnLAN(t, 2, "--routing=native", "--dsr-accept=true")
	near, far := w.nodes[0], w.nodes[1]
	attacker, accomplice := near.pod("attacker"), far.pod("accomplice")
	a := &forwarding{nodesOnLAN: w, near: near, far: far, attacker: attacker, accomplice: accomplice,
		victims: []*pod{far.pod("one"), far.pod("two")}, stranger: rig.NewNetns(t, "stranger")}
	w.connect(a.stranger, 201)
	for _, p := range append(slices.Clone(a.victims), accomplice) {
		p.serve(t)
	}
	for _, is4 := range []bool{true, false} {
		w.routeVia(w.outside, a.front(is4), 2)
		w.routeVia(a.stranger, netip.AddrPortFrom(accomplice.addr[is4], 0), 2)
		w.routeVia(a.stranger, netip.AddrPortFrom(a.victims[0].addr[is4], 0), 2)
		accomplice.ignore(t, client(is4, 0).Addr()) // else the client's reset would end what the client has not begun
	}
	w.write("services", a.objects())
	a.waitServed()
	port := uint16(2000)
	for _, is4 := range []bool{true, false} {
		for name, form := range forwardings() {
			for _, proto := range []string{"udp", "tcp"} {
				for _, named := range []*pod{accomplice, a.victims[0]} {
					port++
					a.attack(fmt.Sprintf("IPv4 %t, %s, %s, for %s", is4, name, proto, named.name), form, name == "opt", proto, is4, named, port)
				}
			}
		}
	}
}

// forwarding is nodes with a client's Service, whose backends are the victims, and an attacker's
// own, whose backend is the accomplice.
type forwarding struct {
	*nodesOnLAN
	near, far            *node
	attacker, accomplice *pod
	victims              []*pod
	stranger             *rig.Netns // a host on the link that is no node
}

func (a *forwarding) front(is4 bool) netip.AddrPort {
	return netip.MustParseAddrPort(map[bool]string{true: "203.0.113.50:80", false: "[2001:db8:50::50]:80"}[is4])
}

// client is where the honest client is.
func client(is4 bool, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(map[bool]string{true: "198.51.100.200", false: "2001:db8:1::c8"}[is4]), port)
}

// attack sends one kind of packet, from the pod and from the host, and then dials as the client.
func (a *forwarding) attack(what string, form func(claim) []byte, isOption bool, proto string, is4 bool, named *pod, port uint16) {
	c := claim{from: a.attacker.addr[is4], backend: netip.AddrPortFrom(named.addr[is4], webPort),
		client: client(is4, port), front: a.front(is4), first: syn}
	if proto == "udp" {
		c.first = func(from, to netip.AddrPort) []byte { return datagram(from, to, []byte("forged")) }
	}
	said := c.client
	if isOption { // which has no outer source
		c.client = netip.AddrPortFrom(c.from, port)
	}
	before := a.near.drops("pod", "forged")
	a.put(a.attacker.Netns, c.backend, form(c))
	if n := a.near.drops("pod", "forged") - before; n != 1 {
		a.t.Errorf("%s: %d packets of a pod were dropped as forged, want 1", what, n)
	}
	c.from, c.client = netip.MustParseAddr(map[bool]string{true: "198.51.100.201", false: "2001:db8:1::c9"}[is4]), said
	a.put(a.stranger, c.backend, form(c))
	// What it sends honestly goes the same way, behind that.
	if who := a.ask(a.stranger, "udp", netip.AddrPort{}, netip.AddrPortFrom(a.accomplice.addr[is4], webPort)); who != "accomplice" {
		a.t.Errorf("%s: the host that is no node reaches %q instead of the accomplice", what, who)
	}
	for _, backend := range a.flowsOf(said) {
		if !isOption || backend == netip.AddrPortFrom(a.accomplice.addr[is4], webPort) {
			a.t.Errorf("%s: there is a flow from %s to %s, which never dialed", what, said, backend)
		}
	}
	if who := a.ask(a.outside, proto, said, c.front); who != "one" && who != "two" {
		a.t.Errorf("%s: the client reaches %q", what, who)
	}
}

// put sends a packet with the header of IP that it has.
func (a *forwarding) put(ns *rig.Netns, to netip.AddrPort, packet []byte) {
	a.t.Helper()
	family := unix.AF_INET6
	if to.Addr().Is4() {
		family = unix.AF_INET
	}
	must(a.t, ns.Do(func() error {
		raw, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(raw)
		return unix.Sendto(raw, packet, 0, sockaddr(netip.AddrPortFrom(to.Addr(), 0)))
	}))
}

// ask returns who serves at an address, or nothing if nobody answers soon. An invalid source leaves
// it to the kernel.
func (a *forwarding) ask(ns *rig.Netns, proto string, from, to netip.AddrPort) (who string) {
	a.t.Helper()
	var dialer net.Dialer
	dialer.Timeout = time.Second
	if from.IsValid() && proto == "tcp" {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(from)
	} else if from.IsValid() {
		dialer.LocalAddr = net.UDPAddrFromAddrPort(from)
	}
	_ = ns.Do(func() error {
		conn, err := dialer.Dial(proto, to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		must(a.t, conn.SetDeadline(time.Now().Add(time.Second)))
		if _, err := conn.Write([]byte("who")); err != nil {
			return err
		}
		buffer := make([]byte, 64)
		n, err := conn.Read(buffer)
		who = string(buffer[:n])
		return err
	})
	return who
}

// waitServed waits until both nodes serve the Services.
func (a *forwarding) waitServed() {
	a.t.Helper()
	deadline := time.Now().Add(patience)
	for _, is4 := range []bool{true, false} {
		for _, proto := range []string{"udp", "tcp"} {
			for _, ns := range []*rig.Netns{a.outside, a.attacker.Netns} {
				for a.ask(ns, proto, netip.AddrPort{}, a.front(is4)) == "" {
					if time.Now().After(deadline) {
						a.t.Fatalf("%s over %s is not served", a.front(is4), proto)
					}
				}
			}
		}
	}
}

// flowsOf returns the backends of the flows that a client has on the far node.
func (a *forwarding) flowsOf(client netip.AddrPort) (backends []netip.AddrPort) {
	a.t.Helper()
	open, half, err := maps.OpenFlows(datapath.MapsDir(a.far.bpffs), true)
	must(a.t, err)
	defer open.Close()
	defer half.Close()
	var buffer maps.FlowBuffer
	list := func(keys []maps.Flow, rows []maps.FlowRow) error {
		for i := range keys {
			if maps.FlowSource(keys[i]) == client {
				backends = append(backends, netip.AddrPortFrom(maps.NetipOf(rows[i].Daddr), maps.PortOf(rows[i].Dport)))
			}
		}
		return nil
	}
	must(a.t, maps.EachFlow(open, &buffer, list))
	must(a.t, maps.EachFlow(half, &buffer, list))
	return backends
}

// serve has a pod say its name to who asks.
func (p *pod) serve(t *testing.T) {
	t.Helper()
	var listener net.Listener
	must(t, p.Do(func() (err error) {
		listener, err = net.Listen("tcp", fmt.Sprintf(":%d", webPort))
		return err
	}))
	t.Cleanup(func() { listener.Close() })
	go rig.Serve(listener, func(conn net.Conn) { _, _ = conn.Write([]byte(p.name)) })
	conn := listen(t, p.Netns, webPort)
	go func() {
		buffer := make([]byte, 64)
		for {
			_, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return // closed
			}
			_, _ = conn.WriteToUDPAddrPort([]byte(p.name), from)
		}
	}()
}

// routeVia gives a host on the link a route to an address by a node.
func (w *nodesOnLAN) routeVia(ns *rig.Netns, to netip.AddrPort, node int) {
	w.t.Helper()
	via := fmt.Sprintf("198.51.100.%d", node)
	if !to.Addr().Is4() {
		via = fmt.Sprintf("2001:db8:1::%x", node)
	}
	must(w.t, ns.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: netip.MustParseAddr(via).AsSlice(), Dst: only(to.Addr())})
	}))
}

// ignore has a pod send nothing to a host.
func (p *pod) ignore(t *testing.T, host netip.Addr) {
	t.Helper()
	must(t, p.Do(func() error { return netlink.RouteAdd(&netlink.Route{Type: unix.RTN_BLACKHOLE, Dst: only(host)}) }))
}

func only(addr netip.Addr) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
}

// objects are the two Services, by both families.
func (a *forwarding) objects() string {
	text := ""
	for i, service := range []string{"web", "own"} {
		text += fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: %[1]s, uid: uid-%[1]s}
spec: {type: LoadBalancer, clusterIP: 10.96.0.1%[2]d, clusterIPs: [10.96.0.1%[2]d, "fd00:96::1%[2]d"], ipFamilies: [IPv4, IPv6], ipFamilyPolicy: RequireDualStack, ports: [{name: u, port: %[3]d, protocol: UDP}, {name: t, port: %[3]d, protocol: TCP}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.5%[2]d}, {ip: "2001:db8:50::5%[2]d"}]}}
`, service, i, frontPort)
		for _, is4 := range []bool{true, false} {
			pods := a.victims
			if service == "own" {
				pods = []*pod{a.accomplice}
			}
			text += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-%[2]t, namespace: %[1]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
ports: [{name: u, port: %[4]d, protocol: UDP}, {name: t, port: %[4]d, protocol: TCP}]
endpoints:
`, service, is4, map[bool]string{true: "IPv4", false: "IPv6"}[is4], webPort)
			for _, p := range pods {
				text += fmt.Sprintf("- {addresses: [%q], nodeName: n2, conditions: {ready: true}}\n", p.addr[is4])
			}
		}
	}
	return text
}
