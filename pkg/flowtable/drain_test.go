package flowtable

import (
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// leaver is a node that is being drained, with maps, a tunnel, and two backends: one reached
// through the tunnel and one to which other nodes forward.
type leaver struct {
	maps  *maps.Maps
	ns    *rig.Netns
	drain *Drain
	ports uint16 // last client port used
}

func newLeaver(t *testing.T) *leaver {
	t.Helper()
	m, dir := newPinned(t)
	l := &leaver{maps: m, ns: rig.NewNetns(t, "node")}
	rig.Veth(t, l.ns, "tunnel", rig.NewNetns(t, "far"), "eth0")
	rig.Address(t, l.ns, "tunnel", "10.8.0.1/24", "fd08::1/64")
	rig.Route(t, l.ns, "10.9.0.0/24", "10.8.0.2")
	rig.Route(t, l.ns, "fd09::/64", "fd08::2")
	err := l.ns.Do(func() error {
		device, err := net.InterfaceByName("tunnel")
		if err != nil {
			return err
		}
		return l.maps.SetTunnel(uint32(device.Index))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, backend := range []string{"10.1.0.5", "fd01::5"} {
		key := maps.HostedAddrKey(netip.MustParseAddr(backend))
		if err := l.maps.Svcs.Put(&key, &maps.Svc{Kind: maps.Hosted}); err != nil {
			t.Fatal(err)
		}
	}
	for _, own := range []string{"192.0.2.1", "2001:db8::1"} {
		if err := l.maps.NodeAddrs.Put(maps.AddrOf(netip.MustParseAddr(own)), &bpf.MapsNodeAddr{}); err != nil {
			t.Fatal(err)
		}
	}
	if l.drain, err = NewDrain(dir, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.drain.Close() })
	return l
}

// stuckCase describes a flow. Zero values mean the defaults given here.
type stuckCase struct {
	dialed, backend string
	proto           uint8 // default: TCP
	half            bool
	flags           uint8
	state, back     uint8 // default: open
	begins          bool  // state stays zero
	seen            uint32
}

// enter writes the rows of a flow.
func (l *leaver) enter(t *testing.T, f stuckCase) {
	t.Helper()
	to, from := netip.MustParseAddrPort(f.dialed), netip.MustParseAddrPort(f.backend)
	client := netip.MustParseAddr("198.51.100.7")
	if to.Addr().Is6() {
		client = netip.MustParseAddr("2001:db8:1::7")
	}
	l.ports++
	key := maps.Flow{
		Saddr: maps.AddrOf(client), Daddr: maps.AddrOf(to.Addr()), Sport: maps.PortOf(l.ports), Dport: maps.PortOf(to.Port()), Proto: f.proto,
	}
	row := maps.FlowRow{
		Saddr: key.Saddr, Daddr: maps.AddrOf(from.Addr()), Sport: key.Sport, Dport: maps.PortOf(from.Port()), Kind: f.flags, State: f.state, Seen: f.seen,
	}
	reply := maps.FlowRow{
		Saddr: key.Daddr, Daddr: key.Saddr, Sport: key.Dport, Dport: key.Sport, Kind: f.flags | maps.FlowReply, State: f.back, Seen: f.seen,
	}
	m := l.maps.Ct
	if f.half {
		m = l.maps.CtPending
	}
	back := maps.BackOf(key, &row)
	row.Checksum, reply.Checksum = maps.ChecksumOf(key, row), maps.ChecksumOf(back, reply)
	if err := m.Put(&key, &row); err != nil {
		t.Fatal(err)
	}
	if !maps.FlowKindOf(f.flags).IsDSR() {
		if err := m.Put(&back, &reply); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStuck checks which flows count as stuck: not those that are over, nor those that the stack
// can continue.
func TestStuck(t *testing.T) {
	const closing, reset, direct = maps.FlowClosing, maps.FlowReset, uint8(1 << bpf.MapsDsrModeDSR_SHIFT)
	const nodePort, other, vip, elsewhere, hosted, far = "192.0.2.1:30080", "192.0.2.2:30080", "203.0.113.9:80", "10.2.0.5:8080", "10.1.0.5:8080", "10.9.0.5:8080"
	const nodePort6, vip6, hosted6, far6 = "[2001:db8::1]:30080", "[2001:db8:9::9]:80", "[fd01::5]:8080", "[fd09::5]:8080"
	for name, c := range map[string]struct {
		flow stuckCase
		want Stuck
	}{
		"to another node":                   {stuckCase{dialed: nodePort, backend: elsewhere}, Stuck{}},
		"to a pod here":                     {stuckCase{dialed: nodePort, backend: hosted}, Stuck{}},
		"answered directly":                 {stuckCase{dialed: nodePort, backend: elsewhere, half: true, flags: direct}, Stuck{Direct: 1}},
		"answered directly, reset":          {stuckCase{dialed: nodePort, backend: elsewhere, half: true, flags: direct, state: reset}, Stuck{}},
		"answered directly, ended long ago": {stuckCase{dialed: nodePort, backend: elsewhere, half: true, flags: direct, state: closing}, Stuck{}},
		"answered directly, ends":           {stuckCase{dialed: nodePort, backend: elsewhere, half: true, flags: direct, state: closing, seen: 1 << 30}, Stuck{Direct: 1}},
		"forwarded here":                    {stuckCase{dialed: other, backend: hosted}, Stuck{Forwarded: 1}},
		"forwarded here, half closed":       {stuckCase{dialed: other, backend: hosted, state: closing}, Stuck{Forwarded: 1}},
		"forwarded here, closed":            {stuckCase{dialed: other, backend: hosted, state: closing, back: closing}, Stuck{}},
		"forwarded here, reset":             {stuckCase{dialed: other, backend: hosted, back: reset}, Stuck{}},
		"forwarded here, IPv6":              {stuckCase{dialed: vip6, backend: hosted6, proto: unix.IPPROTO_UDP}, Stuck{Forwarded: 1}},
		"to a pod here, IPv6":               {stuckCase{dialed: nodePort6, backend: hosted6}, Stuck{}},
		"a pod's, to a pod here":            {stuckCase{dialed: vip, backend: hosted, flags: uint8(maps.FlowPod)}, Stuck{}},
		"by the tunnel":                     {stuckCase{dialed: nodePort, backend: far}, Stuck{Tunnel: 1}},
		"by the tunnel, IPv6":               {stuckCase{dialed: vip6, backend: far6, proto: unix.IPPROTO_UDP}, Stuck{Tunnel: 1}},
		"by the tunnel, not answered":       {stuckCase{dialed: nodePort, backend: far, half: true, begins: true}, Stuck{}},
		"SCTP":                              {stuckCase{dialed: nodePort, backend: elsewhere, proto: unix.IPPROTO_SCTP}, Stuck{SCTP: 1}},
		"a former proxy's":                  {stuckCase{dialed: far, backend: far}, Stuck{}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeaver(t)
			l.enter(t, c.flow.filled())
			err := l.ns.Do(func() error {
				got, err := l.drain.Stuck()
				if got != c.want {
					t.Errorf("%+v; want %+v", got, c.want)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// filled sets the defaults of a case.
func (f stuckCase) filled() stuckCase {
	if f.proto == 0 {
		f.proto = unix.IPPROTO_TCP
	}
	if f.state == 0 && !f.begins {
		f.state = maps.FlowOpen
	}
	if f.back == 0 {
		f.back = maps.FlowOpen
	}
	return f
}

// closeFrontends closes frontends even if the map is full. It leaves rows for packets that other
// nodes forward, but only if there are backends for such packets.
func TestCloseFrontends(t *testing.T) {
	for name, hosts := range map[string]bool{"with backends for other nodes": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			m, _ := newPinned(t)
			var keys []maps.SvcKey
			if hosts {
				key := maps.HostedAddrKey(netip.MustParseAddr("10.1.0.5"))
				if err := m.Svcs.Put(&key, &maps.Svc{Kind: maps.Hosted}); err != nil {
					t.Fatal(err)
				}
			}
			ping := maps.PingKey(netip.MustParseAddr("203.0.113.9"))
			if err := m.Svcs.Put(&ping, &maps.Svc{}); err != nil {
				t.Fatal(err)
			}
			for port := uint16(1); ; port++ { // until the map is full
				key := maps.KeyOf(netip.MustParseAddr("203.0.113.9"), port, unix.IPPROTO_TCP)
				if err := m.Svcs.Update(&key, &maps.Svc{Service: uint32(port)}, ebpf.UpdateNoExist); err != nil {
					break
				}
				keys = append(keys, key)
			}
			if err := closeFrontends(m); err != nil {
				t.Fatal(err)
			}
			for i, key := range append(keys, ping) {
				closed := maps.ClosedKey(key)
				isThere, err := has(m.Svcs, key)
				isClosed, closedErr := has(m.Svcs, closed)
				if want := hosts && i < len(keys); err != nil || closedErr != nil || isThere || isClosed != want {
					t.Fatalf("frontend %d of %d: there %t, closed %t, want %t; %v, %v", i, len(keys), isThere, isClosed, want, err, closedErr)
				}
			}
		})
	}
}
