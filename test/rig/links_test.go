package rig

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestVeth(t *testing.T) {
	Root(t)
	NoLeaks(t)
	a, router, b := NewNetns(t, "a"), NewNetns(t, "router"), NewNetns(t, "b")
	Veth(t, a, "eth0", router, "a")
	Veth(t, b, "eth0", router, "b")
	Address(t, a, "eth0", "10.1.0.2/24", "fd01::2/64")
	Address(t, b, "eth0", "10.2.0.2/24", "fd02::2/64")
	Address(t, router, "a", "10.1.0.1/24", "fd01::1/64")
	Address(t, router, "b", "10.2.0.1/24", "fd02::1/64")
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := router.SetSysctl(name, "1"); err != nil {
			t.Fatal(err)
		}
	}
	Route(t, a, "0.0.0.0/0", "10.1.0.1")
	Route(t, a, "::/0", "fd01::1")
	Route(t, b, "10.1.0.0/24", "10.2.0.1")
	Route(t, b, "fd01::/64", "fd02::1")
	for _, tt := range []struct {
		client  *Netns
		address string
	}{{b, "127.0.0.1:0"}, {b, "[::1]:0"}, {router, "10.2.0.2:0"}, {router, "[fd02::2]:0"}, {a, "10.2.0.2:0"}, {a, "[fd02::2]:0"}} {
		if err := echo(tt.client, b, tt.address); err != nil {
			t.Errorf("%s to %s: %v", tt.client, tt.address, err)
		}
	}
}

// echo sends a line from one namespace to a listener in another and back.
func echo(client, server *Netns, address string) error {
	var listener net.Listener
	err := server.Do(func() (err error) { listener, err = net.Listen("tcp", address); return err })
	if err != nil {
		return err
	}
	defer listener.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, err = fmt.Fprintln(conn, "hello")
			conn.Close()
		}
		served <- err
	}()
	var conn net.Conn
	err = client.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", listener.Addr().String(), 10*time.Second)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	var word string
	if _, err := fmt.Fscanln(conn, &word); err != nil || word != "hello" {
		return fmt.Errorf("read %q: %w", word, err)
	}
	return <-served
}

// IPv6 addresses are usable at once: none waits for duplicate address detection.
func TestNoDuplicateDetection(t *testing.T) {
	Root(t)
	NoLeaks(t)
	a, b := NewNetns(t, "a"), NewNetns(t, "b")
	Veth(t, a, "eth0", b, "eth0")
	Address(t, a, "eth0", "fd00::1/64")
	link, err := a.handle.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := a.handle.AddrList(link, unix.AF_INET6)
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range addrs {
		if addr.IP.String() == "fd00::1" && addr.Flags&unix.IFA_F_NODAD == 0 {
			t.Errorf("%s has flags %#x", addr.IPNet, addr.Flags)
		}
	}
	// Addresses that others add, including the kernel, are checked if either of these is set.
	for _, scope := range []string{"all", "eth0"} {
		err := a.Do(func() error {
			value, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + scope + "/accept_dad")
			if string(value) != "0\n" {
				t.Errorf("accept_dad of %s is %q", scope, value)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestLinkMistakes(t *testing.T) {
	Root(t)
	NoLeaks(t)
	a, b := NewNetns(t, "a"), NewNetns(t, "b")
	Veth(t, a, "eth0", b, "eth0")
	for name, err := range map[string]error{
		"create veth eth0 in a": ConnectVeth(a, "eth0", b, "eth1"),
		"add route to":          a.AddRoute(ipPrefix(t, "10.0.0.0/8"), ipPrefix(t, "192.0.2.1/32").Addr()),
		"find interface eth9":   a.AddAddr("eth9", ipPrefix(t, "10.0.0.1/8")),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("want an error that begins with %q, have %v", name, err)
		}
	}
	var fake fakeT
	Address(&fake, a, "eth9", "10.0.0.1/8")
	if !strings.Contains(fake.fatal, "eth9") {
		t.Errorf("the test did not fail; messages: %q", fake.fatal)
	}
}

func ipPrefix(t *testing.T, text string) netip.Prefix {
	t.Helper()
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		t.Fatal(err)
	}
	return prefix
}
