package topology

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// ask dials from the client to a listener on a server and returns the client's address as the
// server saw it.
func ask(client, server *Host, to netip.Addr) (netip.Addr, error) {
	var listener net.Listener
	err := server.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(to, 0).String())
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	defer listener.Close()
	var conn net.Conn
	err = client.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", listener.Addr().String(), 10*time.Second)
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	accepted, err := listener.Accept()
	if err != nil {
		return netip.Addr{}, err
	}
	defer accepted.Close()
	if _, err := fmt.Fprintln(accepted, accepted.RemoteAddr()); err != nil {
		return netip.Addr{}, err
	}
	var word string
	if _, err := fmt.Fscanln(conn, &word); err != nil {
		return netip.Addr{}, err
	}
	seen, err := netip.ParseAddrPort(word)
	return seen.Addr().Unmap(), err
}

func TestTopologies(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	loopback := func(Knobs) (*Topology, error) { return NewLoopback() }
	tests := []struct {
		name           string
		layOut         func(Knobs) (*Topology, error)
		knobs          Knobs
		nodes, servers int
		hops           int // decrements of the TTL on the way
	}{
		{"loopback", loopback, Knobs{}, 0, 1, 0},
		{"direct", NewDirect, Knobs{}, 0, 1, 0},
		{"direct with jumbo frames", NewDirect, Knobs{MTU: 9000}, 0, 1, 0},
		{"routed", NewRouted, Knobs{}, 1, 1, 1},
		{"pods behind a node", NewRouted, Knobs{Servers: 5}, 1, 5, 1},
		{"merged and checked", NewRouted, Knobs{Offloads: &Offloads{GRO: true}}, 1, 1, 1},
		{"balanced", NewBalanced, Knobs{Servers: 2}, 2, 2, 2},
		{"spread", NewSpread, Knobs{}, 2, 2, 1},
		{"balanced with direct return", NewBalanced, Knobs{DirectReturn: true}, 2, 1, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			top := New(t, tt.layOut, tt.knobs)
			if len(top.Nodes) != tt.nodes || len(top.Servers) != tt.servers {
				t.Fatalf("have %d nodes and %d servers", len(top.Nodes), len(top.Servers))
			}
			for _, server := range top.Servers {
				for _, family := range []Family{IPv4, IPv6} {
					seen, err := ask(top.Client, server, server.Addr(family))
					if err != nil || !isOf(top.Client, seen, family) {
						t.Errorf("%s over %s saw the client as %s: %v", server, family, seen, err)
					}
				}
			}
			for _, port := range top.Client.Ports {
				if err := checkPort(port, tt.knobs); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// isOf reports whether the host has the address at any of its ports.
func isOf(h *Host, addr netip.Addr, family Family) bool {
	return addr == h.Addr(family) || slices.ContainsFunc(h.Ports, func(p *Port) bool { return p.Addr(family) == addr })
}

// checkPort compares an interface with the topology's description of it.
func checkPort(p *Port, knobs Knobs) error {
	var link *net.Interface
	err := p.Host.Do(func() (err error) { link, err = net.InterfaceByName(p.Name); return err })
	if err != nil {
		return err
	}
	mtu := knobs.MTU
	if mtu == 0 {
		mtu = 1500
	}
	if link.Index != p.Index || link.HardwareAddr.String() != p.MAC.String() || link.MTU != mtu {
		return fmt.Errorf("%s is %+v, want %+v with MTU %d", p.Name, link, p, mtu)
	}
	return nil
}

// With direct return the answer bypasses the balancer, and without it does not: the balancer's
// interface counts the packets.
func TestDirectReturn(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	for _, direct := range []bool{false, true} {
		top := New(t, NewBalanced, Knobs{DirectReturn: direct})
		balancer, node := top.Nodes[0], top.Nodes[1]
		before, err := received(balancer.Port(node))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ask(top.Client, top.Servers[0], top.Servers[0].Addr(IPv4)); err != nil {
			t.Fatal(err)
		}
		after, err := received(balancer.Port(node))
		if err != nil {
			t.Fatal(err)
		}
		// A handshake and one line of answer take at least three packets from the server.
		if passed := after - before; direct != (passed < 2) {
			t.Errorf("with direct return %t, %d packets came back to the balancer", direct, passed)
		}
	}
}

// received returns how many packets came in at a port.
func received(p *Port) (packets uint64, err error) {
	err = p.Host.Do(func() error {
		content, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(content)) {
			name, counts, ok := strings.Cut(line, ":")
			if ok && strings.TrimSpace(name) == p.Name {
				var bytes uint64
				_, err := fmt.Sscan(counts, &bytes, &packets)
				return err
			}
		}
		return errors.New("no line of " + p.Name)
	})
	return packets, err
}

func TestOffloads(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	top := New(t, NewDirect, Knobs{})
	set := func(o Offloads) error {
		return top.Client.Do(func() error { return setOffloads("eth0", o) })
	}
	for _, o := range []Offloads{{}, {GRO: true}, {TxChecksum: true}, {GRO: true, TSO: true, TxChecksum: true}} {
		if err := set(o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if err := set(Offloads{TSO: true}); err == nil || !strings.Contains(err.Error(), "TSO needs tx checksums") {
		t.Errorf("TSO without checksums: %v", err)
	}
	err := top.Client.Do(func() error { return setOffloads("eth9", Offloads{}) })
	if err == nil || !strings.Contains(err.Error(), "no such device") {
		t.Errorf("an interface that does not exist: %v", err)
	}
}

func TestMistakes(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	for want, knobs := range map[string]Knobs{
		"set MTU 7":    {MTU: 7},
		"TSO needs tx": {Offloads: &Offloads{TSO: true}},
	} {
		top, err := NewDirect(knobs)
		if err == nil {
			err = errors.Join(errors.New("no error"), top.Close())
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", knobs, err)
		}
	}
}
