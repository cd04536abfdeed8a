package main

import (
	"errors"
	"net"
	"net/netip"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"fairlead.io/fairlead/pkg/cni"
)

// add attaches a container. If it fails, it leaves nothing behind.
func add(args *skel.CmdArgs) error {
	c, err := newCall(args, restart)
	if err != nil {
		return err
	}
	s, err := openSandbox(c.Netns)
	if err != nil {
		return err
	}
	defer s.close()
	previous, err := c.previous()
	if err != nil {
		return err
	}
	if previous != nil {
		return c.chain(s, previous)
	}
	asked, mac, err := c.config.asked()
	if err != nil {
		return err
	}
	request := c.request(cni.Allocate)
	request.Addresses, request.WithoutV6, request.Bandwidth = asked, s.withoutV6, c.config.RuntimeConfig.Bandwidth
	granted, err := c.agent.Ask(request, nil)
	if err != nil {
		return err
	}
	p, err := c.attach(s, granted, mac)
	if err != nil {
		return err
	}
	return types.PrintResult(c.result(p, s, granted), c.config.CNIVersion)
}

// attach makes the device and has the agent route the addresses to it.
func (c *call) attach(s *sandbox, granted *cni.Answer, mac net.HardwareAddr) (p *pair, err error) {
	defer func() {
		if err != nil && (p == nil || !p.old) {
			err = errors.Join(err, c.detach())
		}
	}()
	if p, err = c.makePair(s, granted, mac); err != nil {
		return nil, err
	}
	// Configure the pod's end while the agent works on the node's.
	configured := s.begin(func() error { return s.configure(c.IfName, granted, p.nodeMAC) })
	err = p.prepare(s.node, c.pod.String(), granted.Settings)
	if err == nil && !granted.SetsUp {
		err = p.setUp(s.node)
	}
	if err == nil {
		device := c.describe(&cni.Device{Index: p.index, Name: p.name, MAC: p.nodeMAC.String(), PodMAC: p.podMAC.String()})
		err = c.register(device, granted.Addresses, s.diag)
	}
	if err = errors.Join(err, <-configured); err != nil {
		return p, err
	}
	return p, p.waitReady(s, c.IfName, granted.Addresses)
}

func (c *call) register(device *cni.Device, addrs []netip.Addr, diag *os.File) error {
	request := c.request(cni.Register)
	request.Device, request.Addresses = device, addrs
	_, err := c.agent.Ask(request, diag)
	return err
}

// result returns the result that is printed for the runtime.
func (c *call) result(p *pair, s *sandbox, granted *cni.Answer) *current.Result {
	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: p.name, Mac: p.nodeMAC.String(), Mtu: granted.MTU},
			{Name: c.IfName, Mac: p.podMAC.String(), Mtu: granted.MTU, Sandbox: c.Netns},
		},
		DNS: c.config.DNS,
	}
	for _, addr := range granted.Addresses {
		gateway := gatewayOf(addr.Is4()).AsSlice()
		result.IPs = append(result.IPs, &current.IPConfig{Interface: current.Int(1), Address: *whole(addr), Gateway: gateway})
		route := &types.Route{Dst: *everything(addr.Is4()), GW: gateway}
		if table, own := s.tables[addr.Is4()]; own {
			route.Table = &table
		}
		result.Routes = append(result.Routes, route)
	}
	return result
}

// chain registers the device that another plugin made, and passes its result on.
func (c *call) chain(s *sandbox, previous *current.Result) error {
	device, err := c.findDevice(s)
	if err != nil {
		return err
	}
	addrs, err := c.addressesOf(previous)
	if err != nil {
		return err
	}
	if err := c.register(c.describe(device), addrs, s.diag); err != nil {
		return err
	}
	return types.PrintResult(c.config.PrevResult, c.config.CNIVersion)
}

// findDevice returns the node's end of the interface that another plugin made.
func (c *call) findDevice(s *sandbox) (*cni.Device, error) {
	pod, err := s.handle.LinkByName(c.IfName)
	if err != nil {
		return nil, unexpected("the pod has no interface %s: %v", c.IfName, err)
	}
	if pod.Type() != "veth" {
		return nil, cni.Refusal(types.ErrInvalidNetworkConfig,
			"interface %s is a %s: when chained, fairlead-cni needs a veth", c.IfName, pod.Type())
	}
	node, err := s.node.LinkByIndex(pod.Attrs().ParentIndex)
	same := false
	if err == nil {
		same, err = s.peers(node, pod)
	}
	if err != nil || !same {
		return nil, cni.Refusal(types.ErrInvalidNetworkConfig, "the other end of interface %s is not on this node", c.IfName)
	}
	at := node.Attrs()
	return &cni.Device{
		Index: at.Index, Name: at.Name, Chained: true, MAC: at.HardwareAddr.String(), PodMAC: pod.Attrs().HardwareAddr.String(),
	}, nil
}
