// Package congestion finds out whether pods' connections may use a congestion control that paces
// itself, such as BBR. The kernel has to have it, and a pod's packets have to keep their socket and
// departure time until they leave the node.
package congestion

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
)

// BBR is the kernel's name for BBR.
const BBR = "bbr"

// Way is how pods' packets get to where they leave the node.
type Way struct {
	Netkit bool // pods have netkit devices
	Stack  bool // the node's stack forwards pods' packets
	Tunnel bool // packets to other nodes leave in VXLAN
}

// String returns the options of the agent that make this the way.
func (w Way) String() string {
	device, routing, tunnel := "veth", "bpf", ""
	if w.Netkit {
		device = "netkit"
	}
	if w.Stack {
		routing = "stack"
	}
	if w.Tunnel {
		tunnel = " --routing=vxlan"
	}
	return "--pod-device=" + device + " --host-routing=" + routing + tunnel
}

// The bytes of the headers before a packet in VXLAN, without IP's.
const ethernet, udp, vxlan = 14, 8, 8

// patience is how long to wait for a packet that nothing should hold up.
const patience = 5 * time.Second

// Probe returns nil if pods' connections may use BBR, and otherwise why not. It loads the kernel
// module if needed, and sends a packet along the given way through network namespaces that are gone
// when it returns. That takes a privileged process.
func Probe(w Way) error {
	if err := load(); err != nil {
		return err
	}
	for _, f := range families() {
		result := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread changes its namespace, and ends with the goroutine
			result <- probe(w, f)
		}()
		if err := <-result; err != nil {
			return err
		}
	}
	return nil
}

// load makes the kernel load BBR if it is a module, for which the caller needs the privilege to
// load it by name.
func load() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("use BBR on a socket: %w", err)
	}
	defer unix.Close(fd)
	err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, BBR)
	if errors.Is(err, unix.ENOENT) {
		return errors.New("the kernel has no BBR: it needs CONFIG_TCP_CONG_BBR " +
			"and, if built as such, the module tcp_bbr")
	}
	if err != nil {
		return fmt.Errorf("use BBR on a socket: %w", err)
	}
	return nil
}

// trial is a pod and a node with a device that leads out, each in its own network namespace.
type trial struct {
	way      Way
	family   family
	pod      *os.File // the pod's namespace,
	node     *os.File // and the node's
	in, out  netlink.Link
	by       netlink.Link // where the pod's packets are redirected: the device out, or the tunnel over it
	programs *ebpf.Collection
	attached link.Link // for a netkit only
}

// family is an IP family with the addresses of the trial, which nobody outside sees.
type family struct {
	domain, bits          int
	header                uint32 // bytes of an IP header
	pod, gateway, outside net.IP
	node                  net.IP // at the device that leads out
	forwarding            string // the setting that makes the node's stack forward
}

// families returns the IP families that the kernel has.
func families() []family {
	all := []family{{
		domain: unix.AF_INET, bits: 32, header: 20, pod: net.IPv4(198, 18, 0, 2).To4(), gateway: net.IPv4(198, 18, 0, 1).To4(), outside: net.IPv4(198, 19, 0, 2).To4(),
		node: net.IPv4(198, 19, 0, 1).To4(), forwarding: "ipv4/ip_forward",
	}}
	if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
		all = append(all, family{
			domain: unix.AF_INET6, bits: 128, header: 40, pod: net.ParseIP("2001:2::2"), gateway: net.ParseIP("2001:2::1"), outside: net.ParseIP("2001:2:0:1::2"),
			node: net.ParseIP("2001:2:0:1::1"), forwarding: "ipv6/conf/all/forwarding",
		})
	}
	return all
}

// network returns the network that contains an address of the trial.
func (f *family) network(addr net.IP) *net.IPNet {
	return &net.IPNet{IP: addr, Mask: net.CIDRMask(map[int]int{32: 24, 128: 64}[f.bits], f.bits)}
}

// everyone returns the network of all addresses.
func (f *family) everyone() *net.IPNet {
	return &net.IPNet{IP: make(net.IP, f.bits/8), Mask: net.CIDRMask(0, f.bits)}
}

// allow turns IPv6 on for devices of the thread's new namespace, as namespaces may start with it
// off.
func (f *family) allow() error {
	if f.domain == unix.AF_INET {
		return nil
	}
	var errs []error
	for _, of := range []string{"all", "default"} {
		errs = append(errs, os.WriteFile("/proc/sys/net/ipv6/conf/"+of+"/disable_ipv6", []byte("0"), 0))
	}
	return errors.Join(errs...)
}

func (f *family) sockaddr(addr net.IP) unix.Sockaddr {
	if f.domain == unix.AF_INET {
		return &unix.SockaddrInet4{Port: 9, Addr: [4]byte(addr.To4())}
	}
	return &unix.SockaddrInet6{Port: 9, Addr: [16]byte(addr.To16())}
}

// whoever is the MAC address of everybody outside.
var whoever = net.HardwareAddr{2, 0, 0, 0, 0, 1}

func probe(w Way, f family) error {
	t := &trial{way: w, family: f}
	defer t.close()
	err := t.build()
	if err == nil {
		err = t.attach()
	}
	var saw bpf.SurvivalSurvival
	if err == nil {
		saw, err = t.send()
	}
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("cannot test whether packets keep their sockets: "+
			"that takes a privileged process: %w", err)
	case err != nil:
		return fmt.Errorf("cannot test whether packets keep their sockets: %w", err)
	case saw&bpf.SurvivalSurvivalSURVIVAL_SOCKET == 0 && w.Stack:
		return errors.New("packets lose their socket when the node's stack forwards them: use --host-routing=bpf")
	case saw&bpf.SurvivalSurvivalSURVIVAL_SOCKET == 0 && w.Tunnel:
		return errors.New("packets from a pod's namespace have lost their socket when they " +
			"leave in a tunnel (--routing=vxlan)")
	case saw&bpf.SurvivalSurvivalSURVIVAL_SOCKET == 0:
		return errors.New("packets lose their socket when they leave a pod's namespace")
	case saw&bpf.SurvivalSurvivalSURVIVAL_TIME == 0:
		return errors.New("packets lose their departure time when they leave a pod's namespace, " +
			"as before Linux 5.18")
	}
	return nil
}

// build makes the namespaces and the devices, and leaves the thread in the node's namespace.
func (t *trial) build() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	err := t.family.allow()
	if err != nil {
		return err
	}
	if t.pod, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	inPod, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer inPod.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	if err := t.family.allow(); err != nil {
		return err
	}
	if t.node, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	node, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer node.Close()
	if t.in, err = t.makePod(node); err != nil {
		return fmt.Errorf("make a pod's device: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "out"
	if err := node.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "far"}); err != nil {
		return fmt.Errorf("make a device: %w", err)
	}
	if t.out, err = node.LinkByName("out"); err != nil {
		return err
	}
	far, err := node.LinkByName("far")
	if err == nil {
		err = node.LinkSetUp(far) // or "out" has no carrier
	}
	if err == nil {
		err = setUp(inPod, "eth0", t.family.network(t.family.pod), t.family.gateway, t.in.Attrs().HardwareAddr)
	}
	if err == nil {
		err = setUp(node, "out", t.family.network(t.family.node), t.family.outside, whoever)
	}
	if err == nil {
		err = node.LinkSetUp(t.in)
	}
	if err == nil {
		err = t.dig(node)
	}
	if err != nil {
		return err
	}
	device, err := inPod.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := inPod.RouteAdd(&netlink.Route{LinkIndex: device.Attrs().Index, Gw: t.family.gateway, Dst: t.family.everyone()}); err != nil {
		return fmt.Errorf("give the pod a route: %w", err)
	}
	if t.way.Stack {
		return os.WriteFile("/proc/sys/net/"+t.family.forwarding, []byte("1"), 0)
	}
	return nil
}

// dig makes the tunnel if there is to be one, and chooses the device by which the pod's packets
// leave.
func (t *trial) dig(node *netlink.Handle) error {
	if t.by = t.out; !t.way.Tunnel {
		return nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "tunnel"
	err := node.LinkAdd(&netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: 1, Port: 8472, SrcAddr: t.family.node, Group: t.family.outside, VtepDevIndex: t.out.Attrs().Index,
	})
	if err == nil {
		t.by, err = node.LinkByName("tunnel")
	}
	if err == nil {
		err = node.LinkSetUp(t.by)
	}
	if err != nil {
		return fmt.Errorf("make a tunnel: %w", err)
	}
	return nil
}

func (t *trial) makePod(node *netlink.Handle) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "in"
	if !t.way.Netkit {
		if err := node.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(t.pod.Fd())}); err != nil {
			return nil, err
		}
		return node.LinkByName("in")
	}
	pod := netlink.NewLinkAttrs()
	pod.Name, pod.Namespace = "eth0", netlink.NsFd(t.pod.Fd())
	device := &netlink.Netkit{
		LinkAttrs: attrs, Mode: netlink.NETKIT_MODE_L2, Policy: netlink.NETKIT_POLICY_FORWARD, PeerPolicy: netlink.NETKIT_POLICY_FORWARD,
		Scrub: netlink.NETKIT_SCRUB_DEFAULT, PeerScrub: netlink.NETKIT_SCRUB_DEFAULT,
	}
	device.SetPeerAttrs(&pod)
	if err := node.LinkAdd(device); err != nil {
		return nil, err
	}
	return node.LinkByName("in")
}

// setUp sets a device up with an address and a neighbor.
func setUp(at *netlink.Handle, name string, addr *net.IPNet, neighbor net.IP, mac net.HardwareAddr) error {
	device, err := at.LinkByName(name)
	if err == nil {
		err = at.AddrAdd(device, &netlink.Addr{IPNet: addr, Flags: unix.IFA_F_NODAD})
	}
	if err == nil {
		err = at.LinkSetUp(device)
	}
	if err == nil {
		err = at.NeighAdd(&netlink.Neigh{LinkIndex: device.Attrs().Index, IP: neighbor, HardwareAddr: mac, State: netlink.NUD_PERMANENT})
	}
	if err != nil {
		return fmt.Errorf("set up device %s: %w", name, err)
	}
	return nil
}

// attach loads the programs and attaches them to the devices.
func (t *trial) attach() error {
	spec, err := bpf.LoadSurvival()
	if err == nil {
		err = spec.Variables["leaves_by"].Set(uint32(t.by.Attrs().Index))
	}
	if err == nil {
		to := [16]byte{}
		copy(to[16-t.family.bits/8:], t.family.outside)
		err = spec.Variables["goes_to"].Set(to)
	}
	if err == nil && t.way.Tunnel {
		err = spec.Variables["encapsulated_in"].Set(ethernet + t.family.header + udp + vxlan)
	}
	if err != nil {
		return err
	}
	if t.way.Netkit {
		spec.Programs["survival_redirect"].AttachType = ebpf.AttachNetkitPeer
	}
	if t.programs, err = ebpf.NewCollection(spec); err != nil {
		return fmt.Errorf("load programs: %w", err)
	}
	if err := t.filter(t.out, netlink.HANDLE_MIN_EGRESS, "survival_look"); err != nil || t.way.Stack {
		return err
	}
	if !t.way.Netkit {
		return t.filter(t.in, netlink.HANDLE_MIN_INGRESS, "survival_redirect")
	}
	t.attached, err = link.AttachNetkit(link.NetkitOptions{
		Interface: t.in.Attrs().Index, Program: t.programs.Programs["survival_redirect"], Attach: ebpf.AttachNetkitPeer,
	})
	return err
}

func (t *trial) filter(device netlink.Link, parent uint32, program string) error {
	index := device.Attrs().Index
	err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
	if err == nil {
		err = netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:          t.programs.Programs[program].FD(), Name: program, DirectAction: true,
		})
	}
	if err != nil {
		return fmt.Errorf("attach program %s: %w", program, err)
	}
	return nil
}

// send sends a packet from a socket of the pod, and returns what the packet had kept when it left.
func (t *trial) send() (saw bpf.SurvivalSurvival, err error) {
	if err := unix.Setns(int(t.pod.Fd()), unix.CLONE_NEWNET); err != nil {
		return 0, fmt.Errorf("enter the pod's namespace: %w", err)
	}
	fd, err := unix.Socket(t.family.domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, t.family.sockaddr(t.family.outside))
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return 0, fmt.Errorf("send a packet: %w", err)
	}
	var word uint64
	for deadline := time.Now().Add(patience); word == 0; time.Sleep(time.Millisecond) {
		if err := t.programs.Variables["survived"].Get(&word); err != nil {
			return 0, err
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("the packet did not arrive in %v: %w", patience, t.lost())
		}
	}
	return bpf.SurvivalSurvival(word), nil
}

// lost returns an error that says how far the packets of a connection to be came.
func (t *trial) lost() error {
	said := []string{map[int]string{32: "IPv4", 128: "IPv6"}[t.family.bits]}
	for _, ns := range []*os.File{t.pod, t.node} {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, device := range links {
			if a := device.Attrs(); a.Statistics != nil && a.Name != "lo" {
				said = append(said, fmt.Sprintf("%s (%v, %v) sent %d and got %d, dropped %d and %d", a.Name, a.OperState, a.HardwareAddr,
					a.Statistics.TxPackets, a.Statistics.RxPackets, a.Statistics.TxDropped, a.Statistics.RxDropped))
			}
		}
		for _, name := range []string{"snmp", "snmp6"} {
			counts, err := os.ReadFile("/proc/thread-self/net/" + name)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(counts)) {
				if strings.HasPrefix(line, "Ip") && !strings.HasSuffix(strings.TrimSpace(line), "\t0") {
					said = append(said, strings.Join(strings.Fields(line), " "))
				}
			}
		}
	}
	return errors.New(strings.Join(said, "; "))
}

func (t *trial) close() {
	if t.attached != nil {
		t.attached.Close()
	}
	if t.programs != nil {
		t.programs.Close()
	}
	for _, ns := range []*os.File{t.pod, t.node} {
		if ns != nil {
			ns.Close()
		}
	}
}
