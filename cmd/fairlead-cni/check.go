package main

import (
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/cni"
)

// check compares the pod's interface with the result of ADD.
func check(args *skel.CmdArgs) error {
	c, err := newCall(args, restart)
	if err != nil {
		return err
	}
	said, err := c.previous()
	if err != nil {
		return err
	}
	if said == nil {
		return cni.Refusal(types.ErrInvalidNetworkConfig, "CHECK without prevResult")
	}
	addrs, err := c.addressesOf(said)
	if err != nil {
		return err
	}
	s, err := openSandbox(c.Netns)
	if err != nil {
		return err
	}
	defer s.close()
	device, err := c.checkPod(s, addrs)
	if err != nil {
		return err
	}
	request := c.request(cni.Check)
	request.Device = device
	request.Addresses = addrs
	_, err = c.agent.Ask(request, nil)
	return err
}

// checkPod checks the interface in the pod, and returns its device. If another plugin made the
// device, checkPod leaves the routes alone and returns nil.
func (c *call) checkPod(s *sandbox, addrs []netip.Addr) (*cni.Device, error) {
	link, err := s.handle.LinkByName(c.IfName)
	if err != nil {
		return nil, unexpected("the pod has no interface %s: %v", c.IfName, err)
	}
	have, err := s.handle.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.Equal(addr.AsSlice()) }) {
			return nil, unexpected("interface %s of the pod lacks its address %s", c.IfName, addr)
		}
	}
	node, err := s.node.LinkByIndex(link.Attrs().ParentIndex)
	same := false
	if err == nil {
		same, err = s.peers(node, link)
	}
	if err != nil || !same {
		return nil, unexpected("the other end of the pod's interface %s is not on the node", c.IfName)
	}
	if node.Attrs().Name != c.attachment.Device() {
		return nil, nil // another plugin made it
	}
	for _, addr := range addrs {
		leaves, err := s.leavesBy(link, addr)
		if err != nil {
			return nil, err
		}
		if !leaves {
			return nil, unexpected("the pod lacks its route via %s, or the rule for it", gatewayOf(addr.Is4()))
		}
	}
	return c.describe(&cni.Device{
		Index: node.Attrs().Index, Name: node.Attrs().Name, MAC: node.Attrs().HardwareAddr.String(), PodMAC: link.Attrs().HardwareAddr.String(),
	}), nil
}
