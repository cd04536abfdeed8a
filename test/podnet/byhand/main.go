// Command byhand makes in the kernel what ADD makes there for a pod with an address of each family,
// without an agent, a record or a request. TestCost compares ADD with it. Its argument is the pod's
// network namespace, and it prints how many nanoseconds it took, not counting its start.
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func main() {
	began := time.Now()
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(time.Since(began).Nanoseconds())
}

// device describes the pod's addresses and gateways, and the MAC addresses of both ends.
type device struct {
	addrs    []*netlink.Addr
	gateways []net.IP
	macs     [2]net.HardwareAddr // of the node's end and of the pod's
}

func run(path string) error {
	d := &device{
		gateways: []net.IP{net.IPv4(169, 254, 1, 1).To4(), net.ParseIP("fe80::1")},
		macs:     [2]net.HardwareAddr{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}},
	}
	for _, ip := range []net.IP{net.IPv4(10, 1, 0, 200).To4(), net.ParseIP("fd00:1::200")} {
		whole := &net.IPNet{IP: ip, Mask: net.CIDRMask(len(ip)*8, len(ip)*8)}
		d.addrs = append(d.addrs, &netlink.Addr{IPNet: whole, Flags: unix.IFA_F_NODAD})
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer inside.Close()
	node, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer node.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = "hand0", 1500, d.macs[0]
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns), PeerHardwareAddr: d.macs[1], PeerMTU: 1500, PeerTxQLen: -1}
	if err := node.LinkAdd(veth); err != nil {
		return err
	}
	if err := d.inPod(inside); err != nil {
		return err
	}
	return d.onNode(node, veth)
}

func (d *device) inPod(inside *netlink.Handle) error {
	pod, err := inside.LinkByName("eth0")
	if err != nil {
		return err
	}
	for _, addr := range d.addrs {
		if err := inside.AddrAdd(pod, addr); err != nil {
			return err
		}
	}
	lo := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 1}}
	if err := errors.Join(inside.LinkSetUp(lo), inside.LinkSetUp(pod)); err != nil {
		return err
	}
	for i, gateway := range d.gateways {
		if err := neighbor(inside, pod, gateway, d.macs[0]); err != nil {
			return err
		}
		every := &net.IPNet{IP: make(net.IP, len(d.addrs[i].IP)), Mask: net.CIDRMask(0, len(d.addrs[i].IP)*8)}
		way := &netlink.Route{LinkIndex: pod.Attrs().Index, Dst: every, Gw: gateway, Flags: int(netlink.FLAG_ONLINK)}
		if err := inside.RouteAdd(way); err != nil {
			return err
		}
	}
	return nil
}

func (d *device) onNode(node *netlink.Handle, link netlink.Link) error {
	if err := node.LinkSetUp(link); err != nil {
		return err
	}
	for _, addr := range d.addrs {
		if err := neighbor(node, link, addr.IP, d.macs[1]); err != nil {
			return err
		}
		if err := node.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: addr.IPNet, Scope: netlink.SCOPE_LINK}); err != nil {
			return err
		}
	}
	return nil
}

func neighbor(at *netlink.Handle, link netlink.Link, addr net.IP, mac net.HardwareAddr) error {
	family := netlink.FAMILY_V6
	if addr.To4() != nil {
		family = netlink.FAMILY_V4
	}
	return at.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: family, State: unix.NUD_PERMANENT, Type: unix.RTN_UNICAST, IP: addr, HardwareAddr: mac,
	})
}
