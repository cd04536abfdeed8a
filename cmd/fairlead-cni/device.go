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

// pair is the device of an attachment: one end on the node and one in the pod.
type pair struct {
	name            string
	index           int
	nodeMAC, podMAC net.HardwareAddr
	old             bool // an earlier ADD made it
}

// makePair makes both ends in one request, so that each is in its namespace and has its name from
// the first moment. It keeps a complete pair that exists already. A node's end whose peer is not
// this pod's interface is removed and made again.
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
		return nil, cni.Refusal(types.ErrInvalidNetNS, "the pod already has an interface %s", c.IfName)
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

// createNetkit makes both ends with Ethernet headers, like those of a veth, since the programs
// parse such packets. Scrubbing clears a packet's mark on its way between pod and node, as neither
// side's marks mean anything on the other.
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

// find fills in the pair that exists, if its other end is the pod's interface.
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

// peers reports whether a device on the node and one in the pod are two ends of one. Their indexes
// have to refer to each other, and the pod's peer has to be in the node's namespace: without that,
// unrelated devices may have the same indexes.
func (s *sandbox) peers(node, pod netlink.Link) (bool, error) {
	home, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return false, err
	}
	defer home.Close()
	id, err := s.handle.GetNetNsIdByFd(int(home.Fd()))
	if err != nil {
		return false, fmt.Errorf("get the id that the pod's namespace has for the node's: %w", err)
	}
	return cni.IsKind(node.Type()) && node.Type() == pod.Type() && id >= 0 && pod.Attrs().NetNsID == id &&
		node.Attrs().ParentIndex == pod.Attrs().Index && pod.Attrs().ParentIndex == node.Attrs().Index, nil
}

// prepare configures the node's end. The alias is for people to read.
func (p *pair) prepare(node *netlink.Handle, alias string, settings []cni.Setting) error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: p.index, Name: p.name}}
	if alias != "" {
		if err := node.LinkSetAlias(link, alias); err != nil {
			return fmt.Errorf("set the alias of device %s: %w", p.name, err)
		}
	}
	for _, setting := range settings {
		if err := set(p.name, setting); err != nil {
			return err
		}
	}
	return nil
}

// setUp sets the node's end up. From then on the pod can send.
func (p *pair) setUp(node *netlink.Handle) error {
	if err := node.LinkSetUp(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: p.index, Name: p.name}}); err != nil {
		return fmt.Errorf("set up device %s: %w", p.name, err)
	}
	return nil
}

const (
	// readyTimeout is more than the second for which the kernel may defer its work on a device that
	// was set up.
	readyTimeout = 5 * time.Second
	readyPoll    = 2 * time.Millisecond
)

// waitReady waits until both ends can send and the pod knows its addresses. When an end is set up, the
// kernel makes its peer ready some time later, and later still if there are many, and a worker adds
// the local route of an IPv6 address; packets sent before that are lost. Since Linux 6.8, the
// kernel makes a device ready when it is queried.
func (p *pair) waitReady(s *sandbox, ifName string, addrs []netip.Addr) error {
	lacks := []func() (string, error){
		func() (string, error) { return unready(s.node.LinkByIndex(p.index)) },
		func() (string, error) { return unready(s.handle.LinkByName(ifName)) },
	}
	for _, addr := range addrs {
		if addr.Is6() {
			lacks = append(lacks, func() (string, error) { return s.unknown(addr), nil })
		}
	}
	until := time.Now().Add(readyTimeout)
	for _, check := range lacks {
		for {
			lack, err := check()
			if err != nil {
				return fmt.Errorf("check whether device %s is ready: %w", p.name, err)
			}
			if lack == "" {
				break
			}
			if time.Now().After(until) {
				return cni.Refusal(types.ErrTryAgainLater, "%s %v after device %s was set up", lack,
					readyTimeout, p.name)
			}
			time.Sleep(readyPoll)
		}
	}
	return nil
}

// unready describes the state of a device that cannot send yet; "" if it can.
func unready(link netlink.Link, err error) (string, error) {
	if err != nil || link.Attrs().OperState == netlink.OperUp {
		return "", err
	}
	return fmt.Sprintf("%s is %s", link.Attrs().Name, link.Attrs().OperState), nil
}

// unknown returns an error text if the pod has no local route for an address of its own, and so
// takes no packets for it.
func (s *sandbox) unknown(addr netip.Addr) string {
	routes, err := s.handle.RouteGet(addr.AsSlice())
	if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
		return ""
	}
	return fmt.Sprintf("the pod has no local route for its address %s", addr)
}

// removeLink removes the node's end, and with it the pod's. It is no error if the device is gone.
func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find device %s: %w", name, err)
	}
	if !cni.IsKind(link.Type()) {
		return fmt.Errorf("device %s is a %s, not a pod's device", name, link.Type())
	}
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove device %s: %w", name, err)
	}
	return nil
}
