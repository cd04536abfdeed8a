package netns

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/congestion"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/test/rig"
)

// The probe finds what the kernel does: packets that leave a namespace past the stack keep
// everything, and those that go through the stack lose their socket.
func TestBBRProbe(t *testing.T) {
	rig.Root(t)
	if err := congestion.Probe(congestion.Way{}); err != nil {
		t.Errorf("past the stack: %v", err)
	}
	if err := congestion.Probe(congestion.Way{Tunnel: true}); err != nil {
		t.Errorf("through a tunnel: %v", err)
	}
	if err := congestion.Probe(congestion.Way{Stack: true}); err == nil || !strings.Contains(err.Error(), "--host-routing=bpf") {
		t.Errorf("through the stack: %v", err)
	}
	err := congestion.Probe(congestion.Way{Netkit: true})
	if without := podnet.HasNetkit(); without == nil && err != nil {
		t.Errorf("from a netkit: %v", err)
	} else if without != nil && (err == nil || !strings.Contains(err.Error(),
		"keep their sockets: make a pod's device")) {
		t.Errorf("from a netkit, of which the kernel has none: %v", err)
	}
}

// congestionOfBothEnds has one socket listen and another connect to it, and prints the congestion control of the
// connecting socket and of the accepted one. Further arguments are the address to connect from and
// the congestion control that the connecting socket sets first.
func congestionOfBothEnds(args []string) int {
	err := func() error {
		listener, err := net.Listen("tcp", args[0])
		if err != nil {
			return err
		}
		defer listener.Close()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(args[2])}}
		dialer.Control = func(_, _ string, raw syscall.RawConn) (failed error) {
			if len(args) < 4 {
				return nil
			}
			err := raw.Control(func(fd uintptr) {
				failed = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, args[3])
			})
			return errors.Join(err, failed)
		}
		client, err := dialer.Dial("tcp", args[1])
		if err != nil {
			return err
		}
		defer client.Close()
		server, err := listener.Accept()
		if err != nil {
			return err
		}
		defer server.Close()
		for _, conn := range []net.Conn{client, server} {
			name, err := congestionOf(conn.(*net.TCPConn))
			if err != nil {
				return err
			}
			fmt.Println(name)
		}
		return nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func congestionOf(conn *net.TCPConn) (name string, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return "", err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { name, failed = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) })
	return name, errors.Join(err, failed)
}

// The addresses of a pod whose connections should use BBR, and of one whose connections should not.
var quick, plain = []netip.Addr{netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("fd77::1")}, []netip.Addr{netip.MustParseAddr("10.77.0.2"), netip.MustParseAddr("fd77::2")}

// nodeWithBBR is a node whose pods may use BBR, and a namespace with the addresses of both pods.
type nodeWithBBR struct {
	*node
	bpffs string
	ns    *rig.Netns
	// The congestion control of sockets that choose none, independent of this machine's default.
	usual string
}

func newNodeWithBBR(t *testing.T) *nodeWithBBR {
	t.Helper()
	rig.Root(t)
	p := &nodeWithBBR{node: &node{t: t, cgroup: rig.NewCgroup(t)}, bpffs: rig.BPFFS(t), ns: rig.NewNetns(t, "pods"), usual: "reno"} // every namespace may use it
	if err := p.ns.SetSysctl("net/ipv4/tcp_congestion_control", p.usual); err != nil {
		t.Fatal(err)
	}
	for _, addr := range append(quick, plain...) {
		rig.Address(t, p.ns, "lo", netip.PrefixFrom(addr, addr.BitLen()).String())
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if _, err := datapath.Cleanup(p.bpffs); err != nil {
			t.Error(err)
		}
	})
	p.open(p.usual)
	if err := errors.Join(p.Create(maps.Sizes{}), p.Attach()); err != nil {
		t.Fatal(err)
	}
	return p
}

// open opens the node's datapath, in which pods use BBR instead of that congestion control, or not
// at all if it is empty.
func (p *nodeWithBBR) open(instead string) {
	p.t.Helper()
	d, err := datapath.Open(datapath.Config{
		BPFFS: p.bpffs, CgroupRoot: p.cgroup.Path(), Congestion: instead, Log: slog.New(slog.NewTextHandler(p.t.Output(), nil)),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.Datapath = d
}

func (p *nodeWithBBR) set(bbr bool) {
	p.t.Helper()
	if _, err := p.Maps().SetPods([]maps.Pod{{Addrs: quick, Index: 1, BBR: bbr}, {Addrs: plain, Index: 2}}); err != nil {
		p.t.Fatal(err)
	}
}

// require checks the congestion control of both ends of a connection.
func (p *nodeWithBBR) require(what, client, server string, args ...string) {
	p.t.Helper()
	if got, want := rig.Child(p.t, p.cgroup, p.ns, "congestion", args...), client+"\n"+server+"\n"; got != want {
		p.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// Connections of a pod that should use BBR use it once established, at whichever end the pod is.
// Nothing else does, and neither do sockets that chose a congestion control.
func TestBBR(t *testing.T) {
	p := newNodeWithBBR(t)
	p.set(true)
	at := func(addr netip.Addr) string { return netip.AddrPortFrom(addr, 7777).String() }
	for i, family := range []string{"IPv4", "IPv6"} {
		fast, slow := quick[i], plain[i]
		p.require(family+", both ends", "bbr", "bbr", at(fast), at(fast), fast.String())
		p.require(family+", who connects", "bbr", p.usual, at(slow), at(slow), fast.String())
		p.require(family+", who is connected to", p.usual, "bbr", at(fast), at(fast), slow.String())
		p.require(family+", neither", p.usual, p.usual, at(slow), at(slow), slow.String())
		p.require(family+", with a choice of its own", "cubic", "bbr", at(fast), at(fast), fast.String(), "cubic")
	}
	p.require("IPv4 at a socket of IPv6", p.usual, "bbr", "[::]:7777", at(quick[0]), plain[0].String())
	p.set(false)
	p.require("when it is not to have it any more", p.usual, p.usual, at(quick[0]), at(quick[0]), quick[0].String())
	p.set(true)
	p.require("and again", "bbr", "bbr", at(quick[0]), at(quick[0]), quick[0].String())
	for _, instead := range []string{"", "cubic", p.usual} { // the second is not the namespace's default
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		p.open(instead)
		if err := p.Attach(); err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{true: "bbr", false: p.usual}[instead == p.usual]
		p.require(fmt.Sprintf("by an agent that is told %q", instead), want, want, at(quick[0]), at(quick[0]), quick[0].String())
	}
}
