package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// forwardingNode is a node through which outside clients reach backends elsewhere: four sockets that tell
// each client what they see of it. The clients are as many addresses as a test wants, sharing one
// socket.
type forwardingNode struct {
	mounts
	node, clients, backends *rig.Netns
	nodePort                netip.AddrPort
	socket                  *net.UDPConn
}

// clientPort is the first port of the backends.
const clientPort = 8000

// newForwardingNode returns a node without an agent. With XDP the node has one device and sends packets back
// out of it; otherwise it has two.
func newForwardingNode(t *testing.T, xdp devices.Mode) *forwardingNode {
	t.Helper()
	rig.Root(t)
	w := &forwardingNode{node: rig.NewNetns(t, "node"), clients: rig.NewNetns(t, "clients"), backends: rig.NewNetns(t, "backends")}
	w.nodePort = netip.MustParseAddrPort("192.0.2.1:30053")
	if xdp == devices.Off {
		rig.Veth(t, w.clients, "eth0", w.node, "eth0")
		rig.Veth(t, w.backends, "eth0", w.node, "eth1")
		rig.Address(t, w.node, "eth1", "10.244.2.1/24")
		rig.Address(t, w.backends, "eth0", "10.244.2.5/24")
		rig.Route(t, w.backends, "0.0.0.0/0", "10.244.2.1")
	} else {
		w.connectByBridge(t)
	}
	rig.Address(t, w.clients, "eth0", "192.0.2.7/24")
	rig.Address(t, w.node, "eth0", "192.0.2.1/24")
	rig.Route(t, w.node, "198.18.0.0/16", "192.0.2.7")
	if err := w.node.SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	w.mounts = w.newMounts(t, xdp)
	for i := range uint16(4) {
		w.serve(t, clientPort+i)
	}
	w.listen(t)
	return w
}

// connectByBridge puts all three namespaces on one link. The node's device can send packets back at
// XDP.
func (w *forwardingNode) connectByBridge(t *testing.T) {
	lan := rig.NewNetns(t, "lan")
	rig.Bridge(t, lan, "br0")
	for port, n := range map[string]*rig.Netns{"node": w.node, "clients": w.clients, "backends": w.backends} {
		rig.Veth(t, n, "eth0", lan, port)
		rig.Enslave(t, lan, port, "br0")
		rig.SetOffloads(t, n, "eth0", rig.Offloads{})
		rig.SetOffloads(t, lan, port, rig.Offloads{})
	}
	rig.Address(t, w.backends, "eth0", "192.0.2.5/24")
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pass.Close() })
	err = lan.Do(func() error {
		device, err := net.InterfaceByName("node")
		if err != nil {
			return err
		}
		attached, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: device.Index, Flags: link.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (w *forwardingNode) newMounts(t *testing.T, xdp devices.Mode) mounts {
	p := mounts{cgroup: rig.NewCgroup(t), Config: Config{BPFFS: rig.BPFFS(t), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}}
	p.CgroupRoot, p.Packets = p.cgroup.Path(), clientPackets(xdp)
	t.Cleanup(func() {
		w.do(t, func() error {
			_, err := Cleanup(p.BPFFS)
			return err
		})
	})
	return p
}

func clientPackets(xdp devices.Mode) *Packets {
	filter, err := devices.ParseFilter("eth*")
	if err != nil {
		panic(err)
	}
	return &Packets{Devices: filter, XDP: xdp, NodePorts: NodePortAddrs{primary: true}, SnatPorts: model.PortRange{First: 1024, Last: 29999}}
}

// do runs fn in the node's namespace.
func (w *forwardingNode) do(t *testing.T, fn func() error) {
	t.Helper()
	if err := w.node.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// backendAddr returns the address of the backends.
func (w *forwardingNode) backendAddr(xdp devices.Mode) netip.Addr {
	if xdp == devices.Off {
		return netip.MustParseAddr("10.244.2.5")
	}
	return netip.MustParseAddr("192.0.2.5")
}

// start starts an agent, and writes the service if there were no maps.
func (w *forwardingNode) start(t *testing.T) (d *Datapath) {
	t.Helper()
	w.do(t, func() (err error) {
		d, err = startForwardingNode(w.Config, w.backendAddr(w.Packets.XDP))
		return err
	})
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func startForwardingNode(config Config, backend netip.Addr) (*Datapath, error) {
	d, err := Open(config)
	if err != nil {
		return nil, err
	}
	fresh := !d.Adopted()
	if fresh {
		if err := d.Create(maps.Sizes{}); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	if err := d.Attach(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if fresh {
		err = serveForwardingNode(d.Tables(), backend)
	}
	if err := errors.Join(err, d.scanAddresses(func(*Local) {})); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func serveForwardingNode(tables *maps.Tables, backend netip.Addr) error {
	const slots = 64 // enough that two equal choices in a row are unlikely to be chance
	for i := range uint32(slots) {
		tables.Slots[i] = maps.MakeSlot(1+i%4, 1, 3)
	}
	for i := range uint32(4) {
		row := maps.BackendOf(backend, clientPort+uint16(i), model.UDP)
		row.Owner = maps.MakeOwner(1, 1)
		tables.Backends[1+i] = row
	}
	tables.Services[1] = maps.Service{Words: [2]uint64{uint64(maps.MakeWord(0, slots, 3))}}
	return tables.Svcs.Update(maps.KeyOf(netip.IPv4Unspecified(), 30053, model.UDP), maps.Svc{Service: 1, Kind: maps.NodePort})
}

// serve answers packets at a port of the backends with their content, that port, and the sender's
// port as the backend sees it.
func (w *forwardingNode) serve(t *testing.T, port uint16) {
	t.Helper()
	var socket *net.UDPConn
	err := w.backends.Do(func() (err error) {
		socket, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4zero, Port: int(port)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	_ = socket.SetReadBuffer(4 << 20)
	go func() {
		packet := make([]byte, 64)
		for {
			n, from, err := socket.ReadFromUDPAddrPort(packet)
			if err != nil {
				return
			}
			answer := binary.BigEndian.AppendUint16(packet[:n], port)
			answer = binary.BigEndian.AppendUint16(answer, from.Port())
			if _, err := socket.WriteToUDPAddrPort(answer, from); err != nil {
				return
			}
		}
	}()
}

// listen opens the clients' socket.
func (w *forwardingNode) listen(t *testing.T) {
	t.Helper()
	err := w.clients.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		_, all, err := net.ParseCIDR("198.18.0.0/16")
		if err != nil {
			return err
		}
		err = netlink.RouteAdd(&netlink.Route{
			Dst: all, LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
		})
		if err != nil {
			return err
		}
		w.socket, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4zero, Port: 5000})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.socket.Close() })
	_ = w.socket.SetReadBuffer(4 << 20)
}

// crowd is a set of clients that send and receive, each with one flow.
type crowd struct {
	*forwardingNode
	flows  []clientFlow
	rounds int
	wrong  []string
}

// clientFlow is what a backend told a client: the backend's port, and the client's port as the
// backend sees it. Both are zero before.
type clientFlow struct {
	backend, port uint16
	heard         int // round of the last answer
}

func (w *forwardingNode) newCrowd(n int) *crowd {
	return &crowd{forwardingNode: w, flows: make([]clientFlow, n)}
}

func clientAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }

// say sends a packet of a client, containing the client's index and a number.
func (w *forwardingNode) say(client, number int) error {
	packet := binary.BigEndian.AppendUint32(nil, uint32(client))
	packet = binary.BigEndian.AppendUint32(packet, uint32(number))
	from := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: clientAddr(client).As4()})
	_, _, err := w.socket.WriteMsgUDPAddrPort(packet, from, w.nodePort)
	return err
}

// talk sends one packet of each client from first up to, but not including, last, and receives the
// answers.
func (c *crowd) talk(first, last int) error {
	c.rounds++
	for i := first; i < last; i++ {
		if err := c.say(i, c.rounds); err != nil {
			return err
		}
	}
	if err := c.socket.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	for left, packet := last-first, make([]byte, 64); left > 0; {
		n, from, err := c.socket.ReadFromUDPAddrPort(packet)
		if errors.Is(err, unix.EAGAIN) || isTimeout(err) {
			c.wrong = append(c.wrong, fmt.Sprintf("round %d: %d of %d answers are missing", c.rounds, left, last-first))
			return nil
		}
		if err != nil {
			return err
		}
		if n == 12 && binary.BigEndian.Uint32(packet[4:]) == uint32(c.rounds) {
			c.hear(int(binary.BigEndian.Uint32(packet)), from, packet[8:])
			left--
		}
	}
	return nil
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// hear checks an answer to a client.
func (c *crowd) hear(i int, from netip.AddrPort, answer []byte) {
	have := clientFlow{binary.BigEndian.Uint16(answer), binary.BigEndian.Uint16(answer[2:]), c.rounds}
	was := c.flows[i]
	c.flows[i] = have
	if from != c.nodePort {
		c.wrong = append(c.wrong, fmt.Sprintf("client %d got an answer from %s", i, from))
	}
	if was.heard > 0 && (have.backend != was.backend || have.port != was.port) {
		c.wrong = append(c.wrong, fmt.Sprintf("the flow of client %d was %+v and is %+v", i, was, have))
	}
}

// clientBatch is how many packets are in flight at a time: few enough for every buffer on the way.
const clientBatch = 100

// establish opens the flows of the first n clients.
func (c *crowd) establish(t *testing.T, n int) {
	t.Helper()
	if err := c.talk(0, 1); err != nil { // resolves the neighbors first
		t.Fatal(err)
	}
	for first := 0; first < n; first += clientBatch {
		for range 3 {
			if err := c.talk(first, min(n, first+clientBatch)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(c.wrong) > 0 {
		t.Fatalf("opening %d flows: %d failures, the first: %s", n, len(c.wrong), c.wrong[0])
	}
}

// live continues the flows of the first n clients and opens more, until stop is closed. It returns
// how many it opened.
func (c *crowd) live(n int, stop <-chan struct{}) (begun int, err error) {
	for first := 0; err == nil; first = (first + clientBatch) % (n + begun) {
		select {
		case <-stop:
			return begun, nil
		default:
		}
		err = c.talk(first, min(first+clientBatch, n+begun))
		// A new flow is established by its second packet and must be the same for its third.
		next := n + begun
		if next+clientBatch > len(c.flows) {
			continue
		}
		for range 3 {
			err = errors.Join(err, c.talk(next, next+clientBatch/2))
		}
		begun += clientBatch / 2
	}
	return begun, err
}

// remembered returns how many of the first n clients have both rows of their flow in the map.
func (c *crowd) remembered(t *testing.T, m *ebpf.Map, n int) (whole int) {
	t.Helper()
	for i := range n {
		key := maps.Flow{
			Saddr: maps.AddrOf(clientAddr(i)), Daddr: maps.AddrOf(c.nodePort.Addr()), Proto: unix.IPPROTO_UDP,
			Sport: maps.PortOf(5000), Dport: maps.PortOf(c.nodePort.Port()),
		}
		row, ok, err := maps.LookupFlow(m, key)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			continue
		}
		if _, ok, err = maps.LookupFlow(m, maps.BackOf(key, &row)); err != nil {
			t.Fatal(err)
		}
		if ok && row.Kind&maps.FlowReply == 0 && row.State == uint8(bpf.MapsCtStateCT_OPEN) {
			whole++
		}
	}
	return whole
}
