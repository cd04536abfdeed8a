package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
)

// pair is the device of an attachment: an end on the node and one in the pod.
type pair struct {
	name            string
	index           int
	nodeMAC, podMAC net.HardwareAddr
	old             bool // an ADD before this one made it
}

// makePair makes both ends, each in its namespace and with its name from the first moment, in one request. A pair that is
// there already is taken as it is; half of one, which is none of this pod's, is made anew.
func (c *call) makePair(s *sandbox, granted *cni.Answer, mac net.HardwareAddr) (*pair, error) {
	p := &pair{name: c.attachment.Device()}
	p.nodeMAC, p.podMAC = c.attachment.MACs()
	if mac != nil {
		p.podMAC = mac
	}
	err := p.create(s, c.IfName, granted)
	if errors.Is(err, unix.EEXIST) {
		if err = p.find(s, c.IfName); err == nil && p.old {
			return p, nil
		}
		if err == nil {
			err = removeLink(p.name)
		}
		if err == nil {
			err = p.create(s, c.IfName, granted)
		}
	}
	if errors.Is(err, unix.EEXIST) {
		return nil, cni.Refusal(types.ErrInvalidNetNS, "the pod has an interface %s already", c.IfName)
	}
	if err != nil {
		return nil, fmt.Errorf("make device %s: %w", p.name, err)
	}
	return p, nil
}

func (p *pair) create(s *sandbox, ifName string, granted *cni.Answer) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = p.name, granted.MTU, p.nodeMAC
	attrs.GSOMaxSize, attrs.GROMaxSize = uint32(granted.Largest.V6), uint32(granted.Largest.V6)
	attrs.GSOIPv4MaxSize, attrs.GROIPv4MaxSize = uint32(granted.Largest.V4), uint32(granted.Largest.V4)
	if granted.Kind == cni.Netkit {
		return p.createNetkit(s, ifName, &attrs)
	}
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: ifName, PeerHardwareAddr: p.podMAC, PeerNamespace: netlink.NsFd(s.file.Fd()), PeerMTU: uint32(granted.MTU),
		PeerTxQLen: -1, // the kernel's default
	}
	if err := s.node.LinkAdd(veth); err != nil {
		return err
	}
	p.index = veth.Attrs().Index
	return nil
}

// createNetkit makes both ends with a header of Ethernet, as those of a veth have it, since that is how the programs read packets. What the pod has written
// into a packet's mark means nothing on the node, nor the other way round.
func (p *pair) createNetkit(s *sandbox, ifName string, attrs *netlink.LinkAttrs) error {
	pod := *attrs
	pod.Name, pod.HardwareAddr, pod.Namespace = ifName, p.podMAC, netlink.NsFd(s.file.Fd())
	device := &netlink.Netkit{
		LinkAttrs: *attrs, Mode: netlink.NETKIT_MODE_L2, Policy: netlink.NETKIT_POLICY_FORWARD, PeerPolicy: netlink.NETKIT_POLICY_FORWARD,
		Scrub: netlink.NETKIT_SCRUB_DEFAULT, PeerScrub: netlink.NETKIT_SCRUB_DEFAULT,
	}
	device.SetPeerAttrs(&pod)
	if err := s.node.LinkAdd(device); err != nil {
		return err
	}
	p.index = device.Attrs().Index
	return nil
}

// find takes the pair as it is, if the pod has the other end of it.
func (p *pair) find(s *sandbox, ifName string) error {
	node, err := s.node.LinkByName(p.name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	pod, err := s.handle.LinkByName(ifName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	same, err := s.peers(node, pod)
	if err != nil {
		return err
	}
	if same {
		p.old, p.index = true, node.Attrs().Index
		p.nodeMAC, p.podMAC = node.Attrs().HardwareAddr, pod.Attrs().HardwareAddr
	}
	return nil
}

// peers reports whether two devices, one on the node and one in the pod, are the ends of one. Their numbers say so, and that the
// pod's end has its other end on the node: two ends in one namespace, or two pairs, may have the same numbers.
func (s *sandbox) peers(node, pod netlink.Link) (bool, error) {
	home, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return false, err
	}
	defer home.Close()
	id, err := s.handle.GetNetNsIdByFd(int(home.Fd()))
	if err != nil {
		return false, fmt.Errorf("ask how the pod calls the node's namespace: %w", err)
	}
	return cni.IsKind(node.Type()) && node.Type() == pod.Type() && id >= 0 && pod.Attrs().NetNsID == id &&
		node.Attrs().ParentIndex == pod.Attrs().Index && pod.Attrs().ParentIndex == node.Attrs().Index, nil
}

// prepare sets up the node's end. The alias is for people.
func (p *pair) prepare(node *netlink.Handle, alias string, settings []cni.Setting) error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: p.index, Name: p.name}}
	if alias != "" {
		if err := node.LinkSetAlias(link, alias); err != nil {
			return fmt.Errorf("name device %s: %w", p.name, err)
		}
	}
	for _, setting := range settings {
		if err := set(p.name, setting); err != nil {
			return err
		}
	}
	if err := node.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up device %s: %w", p.name, err)
	}
	return nil
}

const (
	// settleWithin is more than the kernel puts off what it has to do when a device is set up, which is a second.
	settleWithin = 5 * time.Second
	settleLook   = 2 * time.Millisecond
)

// settle waits until both ends can send, and the pod knows its addresses. The kernel gets a device that finds its other end set
// up ready some time after, later if many are, and leaves it to a worker to lead an address of IPv6 to its owner; what is sent
// before that is lost. Since Linux 6.8 it gets a device ready when it is asked.
func (p *pair) settle(s *sandbox, ifName string, addrs []netip.Addr) error {
	lacks := []func() (string, error){
		func() (string, error) { return unready(s.node.LinkByIndex(p.index)) },
		func() (string, error) { return unready(s.handle.LinkByName(ifName)) },
	}
	for _, addr := range addrs {
		if addr.Is6() {
			lacks = append(lacks, func() (string, error) { return s.unknown(addr), nil })
		}
	}
	until := time.Now().Add(settleWithin)
	for _, look := range lacks {
		for {
			lack, err := look()
			if err != nil {
				return fmt.Errorf("look whether device %s is ready: %w", p.name, err)
			}
			if lack == "" {
				break
			}
			if time.Now().After(until) {
				return cni.Refusal(types.ErrTryAgainLater, "%s, %v after device %s was set up", lack, settleWithin, p.name)
			}
			time.Sleep(settleLook)
		}
	}
	return nil
}

// unready says what a device is instead of ready.
func unready(link netlink.Link, err error) (string, error) {
	if err != nil || link.Attrs().OperState == netlink.OperUp {
		return "", err
	}
	return fmt.Sprintf("%s is %s", link.Attrs().Name, link.Attrs().OperState), nil
}

// unknown says that the pod takes no packets for an address of its own.
func (s *sandbox) unknown(addr netip.Addr) string {
	routes, err := s.handle.RouteGet(addr.AsSlice())
	if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
		return ""
	}
	return fmt.Sprintf("the pod has no route to its address %s", addr)
}

// removeLink removes the node's end, and with it the other. One that is gone, or not ours, is no error.
func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find device %s: %w", name, err)
	}
	if !cni.IsKind(link.Type()) {
		return fmt.Errorf("device %s is a %s, and none of a pod", name, link.Type())
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove device %s: %w", name, err)
	}
	return nil
}
