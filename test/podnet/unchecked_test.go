package podnet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/test/rig"
)

// manifests writes the Namespace and the Pod of a test in one step.
func (h *oneNodeWithAgent) manifests(label, annotation string) {
	h.t.Helper()
	text := fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {%s}}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: shop, uid: uid-a, annotations: {%s}}
spec: {nodeName: node-a, containers: [{name: c, image: i}]}
`, label, annotation)
	path := filepath.Join(h.files, "shop.yaml")
	h.must(os.WriteFile(path+".tmp", []byte(text), 0o644))
	h.must(os.Rename(path+".tmp", path))
}

// The addresses that a pod uses and that are not its own.
var borrowed = map[bool]netip.Addr{true: netip.MustParseAddr("203.0.113.9"), false: netip.MustParseAddr("2001:db8:9::9")}

// spoof sends one datagram from an address that is not the pod's.
func spoof(args []string) int {
	from, to := netip.MustParseAddr(args[0]), netip.MustParseAddrPort(args[1])
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(to))
	if err == nil {
		_, err = conn.Write([]byte("I am another"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// ear receives datagrams in a namespace.
func ear(t *testing.T, ns *rig.Netns) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	if err := ns.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: 9})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// dropped returns how many packets of pods were dropped because of their source address.
func (h *oneNodeWithAgent) dropped() (packets uint64) {
	h.t.Helper()
	list, err := reasons.ReadDrops(datapath.MapsDir(h.bpffs))
	h.must(err)
	for _, drop := range list {
		if drop.Hook == "pod" && drop.Reason == "spoofed" {
			packets += drop.Packets
		}
	}
	return packets
}

// borrow gives a pod's interface the addresses that are not its own.
func (h *oneNodeWithAgent) borrow(p *pod) {
	h.t.Helper()
	h.must(p.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, addr := range borrowed {
			ip := &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}, Flags: unix.IFA_F_NODAD}
			if err := netlink.AddrAdd(link, ip); err != nil {
				return err
			}
		}
		return nil
	}))
}

// spoofs has a pod send a datagram from each borrowed address.
func (h *oneNodeWithAgent) spoofs(p *pod) {
	for is4, addr := range borrowed {
		rig.Child(h.t, nil, p.Netns, "spoof", addr.String(), netip.AddrPortFrom(outsiders[is4], 9).String())
	}
}

// until waits for a condition.
func (n *node) until(what string, done func() bool) {
	n.t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("not in %v: %s", patience, what)
		}
	}
}

// TestUnchecked checks that a pod may send from other addresses while both its annotation and its
// namespace's label allow it, whichever comes first, with or without the agent, and that status
// says so when the label is missing.
func TestUnchecked(t *testing.T) {
	h := newOneNodeWithAgent(t)
	const optional, off = "fairlead.io/source-check: optional", `fairlead.io/source-check: "off"`
	h.manifests("", off)
	p := h.pod("a")
	h.mustAdd(p)
	h.borrow(p)
	conn := ear(t, h.outside)
	send := func() { h.spoofs(p) }
	passes := func(when string) {
		t.Helper()
		send()
		heard := map[netip.Addr]bool{}
		buffer := make([]byte, 100)
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		for len(heard) < len(borrowed) {
			_, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				t.Fatalf("%s: heard of %v alone: %v", when, heard, err)
			}
			heard[from.Addr().Unmap()] = true
		}
		for _, addr := range borrowed {
			if !heard[addr] {
				t.Errorf("%s: heard of %v, want %s", when, heard, addr)
			}
		}
	}
	// A drop is counted before the sender continues, so none of the datagrams is still on its way.
	drops := func(when string) {
		t.Helper()
		before := h.dropped()
		send()
		if after := h.dropped(); after < before+uint64(len(borrowed)) {
			t.Errorf("%s: %d of %d are dropped", when, after-before, len(borrowed))
		}
	}
	until := h.until
	said := func(text string) func() bool { return func() bool { return strings.Contains(h.run("status"), text) } }
	const unchecked = "1 of them with unchecked source addresses"
	not := func(of func() bool) func() bool { return func() bool { return !of() } }

	until("the pod is told what it lacks", said("SourceCheckKept"))
	drops("without the label")
	h.manifests(optional, off)
	until("the pod is unchecked", said(unchecked))
	passes("with both")
	if said("SourceCheckKept")() {
		t.Errorf("what was lacking is still said:\n%s", h.run("status"))
	}
	h.kill()
	passes("without the agent")
	h.start()
	h.ready()
	passes("with the next agent")
	h.manifests(optional, `fairlead.io/source-check: "on"`)
	until("the pod is checked", not(said(unchecked)))
	drops("once it does not ask")
	h.manifests(optional, off)
	until("the pod is unchecked again", said(unchecked))
	passes("again")
	h.manifests("", off)
	until("the pod is checked again", not(said(unchecked)))
	drops("without the label again")
}
