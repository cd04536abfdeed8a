// Package congestion finds out whether connections of pods may have a congestion control that paces itself, such as BBR: the kernel has to have it, and
// what a pod sends has to know its socket, and the time that this gave it, until it leaves the node.
package congestion

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
)

// BBR is the kernel's name of it.
const BBR = "bbr"

// Way is how packets of pods come to where they leave the node.
type Way struct {
	Netkit bool // the devices of pods are netkits
	Stack  bool // the node's stack forwards what they send
}

// patience is how long a packet may take that nothing is in the way of.
const patience = 5 * time.Second

// Probe returns why connections of pods may not have BBR; nil if they may. It has the kernel load what it needs for that, and sends a packet by that way
// through network namespaces that are gone when it returns, which takes what a privileged process may do.
func Probe(w Way) error {
	if err := load(); err != nil {
		return err
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with this: it is not where it was
		result <- probe(w)
	}()
	found := <-result
	return found
}

// load has the kernel load BBR, if it is a module: that takes who may ask for it by its name.
func load() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("try a connection with BBR: %w", err)
	}
	defer unix.Close(fd)
	err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, BBR)
	if errors.Is(err, unix.ENOENT) {
		return errors.New("the kernel has no BBR: it takes CONFIG_TCP_CONG_BBR, and its module tcp_bbr")
	}
	if err != nil {
		return fmt.Errorf("try a connection with BBR: %w", err)
	}
	return nil
}

// trial is a pod and a node with a device that leads out, each in a namespace of its own.
type trial struct {
	way      Way
	pod      *os.File // its namespace
	in, out  netlink.Link
	programs *ebpf.Collection
	attached link.Link // nil unless the pod has a netkit
}

// The addresses are seen by nobody.
var (
	podAddr  = net.IPv4(198, 18, 0, 2)
	gateway  = net.IPv4(198, 18, 0, 1)
	outside  = net.IPv4(198, 19, 0, 2)
	podNet   = &net.IPNet{IP: podAddr, Mask: net.CIDRMask(24, 32)}
	outNet   = &net.IPNet{IP: net.IPv4(198, 19, 0, 1), Mask: net.CIDRMask(24, 32)}
	whoever  = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	everyone = &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
)

func probe(w Way) error {
	t := &trial{way: w}
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
		return fmt.Errorf("whether packets keep their sockets could not be tried: that takes a privileged process: %w", err)
	case err != nil:
		return fmt.Errorf("whether packets keep their sockets could not be tried: %w", err)
	case saw&bpf.SurvivalSurvivalSURVIVAL_SOCKET == 0 && w.Stack:
		return errors.New("the node's stack forgets whose socket a packet is from when it forwards it: it takes --host-routing=bpf")
	case saw&bpf.SurvivalSurvivalSURVIVAL_SOCKET == 0:
		return errors.New("what leaves a pod's namespace has forgotten whose socket it is from")
	case saw&bpf.SurvivalSurvivalSURVIVAL_TIME == 0:
		return errors.New("what leaves a pod's namespace has forgotten the time that its socket gave it, as before Linux 5.18")
	}
	return nil
}

// build makes the namespaces and the devices. The thread is in the node's afterwards.
func (t *trial) build() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	var err error
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
	err = setUp(inPod, "eth0", podNet, gateway, t.in.Attrs().HardwareAddr)
	if err == nil {
		err = setUp(node, "out", outNet, outside, whoever)
	}
	if err == nil {
		err = node.LinkSetUp(t.in)
	}
	if err != nil {
		return err
	}
	device, err := inPod.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := inPod.RouteAdd(&netlink.Route{LinkIndex: device.Attrs().Index, Gw: gateway, Dst: everyone}); err != nil {
		return fmt.Errorf("give the pod a route: %w", err)
	}
	if t.way.Stack {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
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

// setUp gives a device an address and a neighbour.
func setUp(at *netlink.Handle, name string, addr *net.IPNet, neighbour net.IP, mac net.HardwareAddr) error {
	device, err := at.LinkByName(name)
	if err == nil {
		err = at.AddrAdd(device, &netlink.Addr{IPNet: addr})
	}
	if err == nil {
		err = at.LinkSetUp(device)
	}
	if err == nil {
		err = at.NeighAdd(&netlink.Neigh{LinkIndex: device.Attrs().Index, IP: neighbour, HardwareAddr: mac, State: netlink.NUD_PERMANENT})
	}
	if err != nil {
		return fmt.Errorf("set up device %s: %w", name, err)
	}
	return nil
}

// attach loads the programs and has the devices run them.
func (t *trial) attach() error {
	spec, err := bpf.LoadSurvival()
	if err == nil {
		err = spec.Variables["leaves_by"].Set(uint32(t.out.Attrs().Index))
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

// send has a socket of the pod send a packet, and returns what came with it.
func (t *trial) send() (saw bpf.SurvivalSurvival, err error) {
	if err := unix.Setns(int(t.pod.Fd()), unix.CLONE_NEWNET); err != nil {
		return 0, fmt.Errorf("enter the pod's namespace: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte(outside.To4())})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return 0, fmt.Errorf("send a packet: %w", err)
	}
	var word uint64
	for deadline := time.Now().Add(patience); word == 0; time.Sleep(time.Millisecond) {
		if err := t.programs.Variables["survived"].Get(&word); err != nil {
			return 0, err
		}
		if time.Now().After(deadline) {
			return 0, errors.New("the packet did not come")
		}
	}
	return bpf.SurvivalSurvival(word), nil
}

func (t *trial) close() {
	if t.attached != nil {
		t.attached.Close()
	}
	if t.programs != nil {
		t.programs.Close()
	}
	if t.pod != nil {
		t.pod.Close()
	}
}
