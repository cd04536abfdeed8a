package explain

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/snapshot"
	"fairlead.io/fairlead/test/tables"
)

const second = uint64(1e9)

// asked is a node with services of every kind, and the memory of its clients.
type asked struct {
	*tables.Layout
	facts
}

func newAsked() *asked {
	a := &asked{Layout: tables.NewLayout()}
	for _, w := range tables.Shop() {
		a.Add(w)
	}
	a.node = map[netip.Addr]struct{}{netip.MustParseAddr("192.0.2.1"): {}, netip.MustParseAddr("2001:db8:1::1"): {}}
	a.remembered = func(uint64, *snapshot.Service) (*bpf.MapsAffinity, error) { return nil, nil }
	a.now = 1000 * second
	return a
}

// question parses "tcp 10.1.0.9 10.96.0.10:80"; "node" stands for a process of the node.
func question(text string) Question {
	words := strings.Fields(text)
	q := Question{Destination: netip.MustParseAddrPort(words[2]), Protocol: model.TCP}
	if words[0] == "udp" {
		q.Protocol = model.UDP
	}
	if words[1] != "node" {
		q.Client = netip.MustParseAddr(words[1])
	}
	return q
}

func snapshotOf(t *testing.T, l *tables.Layout) *snapshot.Snapshot {
	t.Helper()
	s, err := snapshot.Take(snapshot.Tables{
		Frontends: l.Frontends, Ranges: l.Ranges, Services: l.Services, Slots: l.Slots, Backends: l.Backends, Names: l.Names,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (a *asked) ask(t *testing.T, q Question) *Explanation {
	t.Helper()
	e, err := explain(snapshotOf(t, a.Layout), a.facts, q)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestExplain(t *testing.T) {
	const web4, web6 = "shop/web:http/tcp4", "shop/web:http/tcp6"
	for _, tt := range []struct {
		question string
		outcome  Outcome
		service  string
		scope    string
		says     string // part of the text
	}{
		{"tcp 10.1.0.9 10.96.0.10:80", ToBackend, web4, "all", "10.96.0.10:80 ClusterIP: the row of this address"},
		{"tcp 10.1.0.9 [::ffff:10.96.0.10]:80", ToBackend, web4, "all", "one of 2 backends"},
		{"tcp 10.1.0.9 [2001:db8::1]:80", ToBackend, web6, "all", "externalTrafficPolicy is Cluster"},
		{"tcp 10.1.0.9 192.0.2.1:30080", ToBackend, web4, "all", "192.0.2.1 is an address of this node"},
		{"tcp 10.1.0.9 192.0.2.1:30080", ToBackend, web4, "all", "this node the connection short-circuits to every backend"},
		{"tcp 10.1.0.9 192.0.2.2:30080", LeftAlone, "", "", "port 30080 is the node port of shop/web:http/tcp4: if 192.0.2.2 is another node"},
		{"tcp 10.1.0.9 192.0.2.2:9000", LeftAlone, "", "", "192.0.2.2 is not an address of this node"},
		{"tcp 10.1.0.9 127.0.0.1:30080", LeftAlone, "", "", "for a pod, 127.0.0.1 is the pod itself"},
		{"tcp 10.1.0.9 0.0.0.0:30080", LeftAlone, "", "", "for a pod, 0.0.0.0 is the pod itself"},
		{"tcp node 127.0.0.1:30080", ToBackend, web4, "all", "for a process of the node, 127.0.0.1 is the node itself"},
		{"tcp 192.0.2.1 127.0.0.1:30080", ToBackend, web4, "all", "a process of the node (192.0.2.1)"},
		{"tcp 127.0.0.1 127.0.0.1:30080", ToBackend, web4, "all", "a process of the node (127.0.0.1)"},
		{"tcp node 0.0.0.0:30080", ToBackend, web4, "all", "the row of this address, and for a process"},
		{"tcp node [::1]:30080", LeftAlone, "", "", "the node has no port 30080/tcp"},
		{"tcp 10.1.0.9 192.0.2.1:9000", ToBackend, "pod:shop/web-0:0.0.0.0:9000/tcp4", "all", "a host port leads to its pod"},
		{"tcp 10.1.0.9 192.0.2.1:9000", ToBackend, "pod:shop/web-0:0.0.0.0:9000/tcp4", "all", "goes to 10.1.0.1:9000, the only backend"},
		{"tcp 10.1.0.9 10.96.0.12:80", Refused, "shop/empty/tcp4", "local", "no usable backend on this node"},
		{"tcp 10.1.0.9 10.96.0.13:80", Refused, "shop/none/tcp4", "all", "the service has no usable backend"},
		{"tcp 10.1.0.9 203.0.113.1:80", LeftAlone, "", "", "external IP of shop/outside/tcp4, and --external-ips=external-only"},
		{"tcp 10.1.0.9 203.0.113.2:80", LeftAlone, "shop/guarded/tcp4", "", "admits only its source ranges"},
		{"tcp 10.1.0.9 192.0.2.99:9001", LeftAlone, "", "", "192.0.2.99 is the host IP of a HostPort, but not an address of this node"},
		{"udp 10.1.0.9 10.96.0.10:80", LeftAlone, "", "", "10.96.0.10:80/tcp  ClusterIP  shop/web:http/tcp4  another protocol"},
		{"tcp 10.1.0.9 10.96.0.10:81", LeftAlone, "", "", "10.96.0.10:80/tcp  ClusterIP  shop/web:http/tcp4  another port"},
		{"udp 10.1.0.9 10.96.0.10:81", LeftAlone, "", "", "another port and protocol"},
		{"tcp 10.1.0.9 10.96.10:80", LeftAlone, "", "", "another address"},
		{"udp 10.1.0.9 192.0.2.1:30080", LeftAlone, "", "", "a port of the node with another protocol"},
		{"tcp 10.1.0.9 192.0.2.7:30080", LeftAlone, "", "", "a port of the node, at the node's addresses"},
		{"tcp 10.1.0.9 10.1.0.2:8080", LeftAlone, "", "", "its backend, which a client may also dial directly"},
	} {
		t.Run(tt.question, func(t *testing.T) {
			a := newAsked()
			a.Add(tables.Wants{Name: "shop/none/tcp4", Frontends: map[string]uint32{"10.96.0.13:80": maps.ClusterIP}})
			a.Add(tables.Wants{Name: "shop/outside/tcp4", Frontends: map[string]uint32{"203.0.113.1:80": maps.ExternalOnly}})
			a.Add(tables.Wants{Name: "shop/guarded/tcp4", Flags: maps.SourceRanges, Frontends: map[string]uint32{"203.0.113.2:80": maps.LoadBalancer}})
			a.Add(tables.Wants{Name: "pod:shop/far/tcp4", Frontends: map[string]uint32{"192.0.2.99:9001": maps.HostPort}})
			e := a.ask(t, question(strings.Replace(tt.question, "10.96.10:80", "10.96.0.1:80", 1)))
			var text strings.Builder
			if err := e.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if e.Outcome != tt.outcome || e.Service != tt.service || e.Scope != tt.scope || !strings.Contains(text.String(), tt.says) {
				t.Errorf("%s of %q in scope %q, want %s of %q in %q and %q in:\n%s", e.Outcome, e.Service, e.Scope,
					tt.outcome, tt.service, tt.scope, tt.says, text.String())
			}
			if len(e.Damage) > 0 {
				t.Errorf("damage: %q", e.Damage)
			}
		})
	}
}

func TestExplainShares(t *testing.T) {
	e := newAsked().ask(t, question("tcp 10.1.0.9 10.96.0.11:80"))
	want := []Candidate{
		{netip.MustParseAddrPort("10.1.0.1:8080"), 1, 100.0 / 3}, {netip.MustParseAddrPort("10.1.0.2:8080"), 2, 200.0 / 3},
	}
	if diff := cmp.Diff(want, e.Candidates, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if e.Next != nil {
		t.Errorf("a random choice is predicted: %s", e.Next)
	}
}

// TestExplainChoice checks that the backend is named whenever it is determined.
func TestExplainChoice(t *testing.T) {
	const cookie = 4242
	backends := []string{"10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80"}
	for _, tt := range []struct {
		name      string
		algorithm lb.Algorithm
		affinity  uint32
		turn      uint32
		cookie    uint64
		entry     *bpf.MapsAffinity
		next      string // "" if it is not determined
		says      string // in Affinity or Decides
	}{
		{"random", lb.Random, 0, 5, cookie, nil, "", "draws one of 3 slots"},
		{"round robin", lb.RoundRobin, 0, 5, 0, nil, "10.1.0.3:80", "slot 2 of 3"},
		{"round robin that wraps", lb.RoundRobin, 0, ^uint32(0), 0, nil, "10.1.0.1:80", "slot 0 of 3"},
		{"source hash", lb.SourceHash, 0, 0, cookie, nil, backends[mix(cookie)%3], "the client's network namespace decides"},
		{"source hash of another namespace", lb.SourceHash, 0, 0, 0, nil, "", "run the command in that namespace"},
		{"maglev", lb.Maglev, 0, 0, cookie, nil, "", "for clients outside, the hash of the flow decides"},
		{"affinity", lb.Random, 60, 0, cookie, &bpf.MapsAffinity{Last: 990 * second, Row: 1}, "10.1.0.2:80", "has 10.1.0.2:80, for another 50s"},
		{"affinity at its end", lb.Random, 60, 0, cookie, &bpf.MapsAffinity{Last: 940 * second, Row: 1}, "10.1.0.2:80", "for another 0s"},
		{"affinity over", lb.Random, 60, 0, cookie, &bpf.MapsAffinity{Last: 940*second - 1, Row: 1}, "", "was 1m0s ago"},
		{"affinity before turns", lb.RoundRobin, 60, 2, cookie, &bpf.MapsAffinity{Last: 990 * second, Row: 0}, "10.1.0.1:80", "has 10.1.0.1:80"},
		{"affinity to what is gone", lb.RoundRobin, 60, 2, cookie, &bpf.MapsAffinity{Last: 990 * second, Row: 7}, "10.1.0.3:80", "not usable any more"},
		{"affinity of nobody", lb.RoundRobin, 60, 2, cookie, nil, "10.1.0.3:80", "has no backend yet"},
		{"affinity of another namespace", lb.RoundRobin, 60, 2, 0, nil, "", "the maps identify the client by its network namespace"},
		{"a clock that was read before", lb.Random, 60, 0, cookie, &bpf.MapsAffinity{Last: 1001 * second, Row: 1}, "10.1.0.2:80", "for another 1m0s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newAsked()
			a.Layout = tables.NewLayout()
			index := a.Add(tables.Wants{
				Name: "a/b/tcp4", Algorithm: uint8(tt.algorithm), Affinity: tt.affinity, All: backends,
				Frontends: map[string]uint32{"10.96.0.10:80": maps.ClusterIP},
			})
			a.Services[index].Turn = tt.turn
			a.remembered = func(of uint64, service *snapshot.Service) (*bpf.MapsAffinity, error) {
				if of != cookie || service.Index != index {
					t.Errorf("asked for the affinity of %d to service %d", of, service.Index)
				}
				return tt.entry, nil
			}
			q := question("tcp 10.1.0.9 10.96.0.10:80")
			q.Self = Namespace{tt.cookie, []netip.Addr{q.Client}}
			e := a.ask(t, q)
			next := ""
			if e.Next != nil {
				next = e.Next.String()
			}
			if next != tt.next || !strings.Contains(e.Affinity+e.Decides, tt.says) {
				t.Errorf("next is %q, want %q and %q in %q or %q", next, tt.next, tt.says, e.Affinity, e.Decides)
			}
		})
	}
}

// TestExplainKnowsItsNamespace checks that the caller's cookie is not mistaken for that of another
// client.
func TestExplainKnowsItsNamespace(t *testing.T) {
	pod, node := netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("192.0.2.1")
	for _, tt := range []struct {
		client string
		addrs  []netip.Addr // of the caller
		want   uint64
	}{
		{"10.1.0.9", []netip.Addr{pod}, 7},
		{"10.1.0.8", []netip.Addr{pod}, 0},
		{"10.1.0.9", []netip.Addr{node}, 0},
		{"node", []netip.Addr{node}, 7},
		{"127.0.0.1", []netip.Addr{node}, 7},
		{"192.0.2.1", []netip.Addr{pod, node}, 7},
		{"node", []netip.Addr{pod}, 0},
		{"127.0.0.1", []netip.Addr{pod}, 0},
		{"node", nil, 0},
	} {
		q := question("tcp " + tt.client + " 10.96.0.10:80")
		q.Self = Namespace{7, tt.addrs}
		x := explainer{facts: newAsked().facts, Question: q}
		if got := x.cookieOfClient(); got != tt.want {
			t.Errorf("client %s asked from %v: cookie %d, want %d", tt.client, tt.addrs, got, tt.want)
		}
	}
}

func TestExplainDamage(t *testing.T) {
	a := newAsked()
	a.Frontends[maps.KeyOf(netip.MustParseAddr("10.96.0.99"), 80, model.TCP)] = maps.Svc{Service: 40}
	e := a.ask(t, question("tcp node 10.96.0.99:80"))
	if e.Outcome != Refused || len(e.Damage) != 1 || !strings.Contains(e.Damage[0], "leads to service 40, which does not exist") {
		t.Errorf("dangling: %s, %q", e.Outcome, e.Damage)
	}
	a.Slots[0] = maps.Slot{}
	e = a.ask(t, question("tcp node 10.96.0.10:80"))
	if e.Outcome != Refused || len(e.Damage) != 1 || !strings.Contains(e.Damage[0], "slot 0 belongs to service 0") {
		t.Errorf("with a bad first slot: %s, %q", e.Outcome, e.Damage)
	}
	a.Services[2].AffinitySeconds = 1
	a.remembered = func(uint64, *snapshot.Service) (*bpf.MapsAffinity, error) { return nil, errors.New("no access") }
	q := question("tcp 10.1.0.9 [fd96::10]:80")
	q.Self = Namespace{7, []netip.Addr{q.Client}}
	if _, err := explain(snapshotOf(t, a.Layout), a.facts, q); err == nil {
		t.Error("explain did not return the error of the affinity lookup")
	}
}

func TestOneEdit(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"10.96.0.1", "10.96.0.10", true},
		{"10.96.0.10", "10.96.0.1", true},
		{"10.96.0.10", "10.96.0.20", true},
		{"10.96.0.10", "10.6.0.10", true},
		{"a", "", true},
		{"10.96.0.10", "10.96.0.10", false},
		{"10.96.0.10", "10.96.1.20", false},
		{"10.96.0.10", "10.96.0", false},
		{"ab", "ba", false},
	} {
		if got := oneEdit(tt.a, tt.b); got != tt.want {
			t.Errorf("oneEdit(%q, %q) = %v", tt.a, tt.b, got)
		}
	}
}

// SCTP sockets are left alone, whatever owns the address, and no probe opens one.
func TestExplainSCTP(t *testing.T) {
	a := newAsked()
	a.Frontends[maps.KeyOf(netip.MustParseAddr("10.96.0.10"), 80, model.SCTP)] = maps.Svc{Service: 1, Kind: maps.ClusterIP}
	q := question("tcp node 10.96.0.10:80")
	q.Protocol = model.SCTP
	e := a.ask(t, q)
	e.here = true
	if err := e.AddProbes(3); err != nil {
		t.Fatal(err)
	}
	if e.Outcome != LeftAlone || !strings.Contains(e.Reason, "no hook") || len(e.Probes) > 0 || len(e.Notes) != 1 {
		t.Errorf("%s: %s; %d probes, %q", e.Outcome, e.Reason, len(e.Probes), e.Notes)
	}
}

// Packets of a pod whose sockets are not pointed at a backend are balanced at its device, by its
// address.
func TestExplainPodDevice(t *testing.T) {
	const pod = "10.1.0.9"
	visit := func(last uint64, row uint32) lastFlow { return lastFlow{true, last, row} }
	for _, tt := range []struct {
		question, protocol string
		optedOut           bool
		service            tables.Wants
		visit              lastFlow
		outcome            Outcome
		next               string
		says               []string
	}{
		{"sctp", "sctp", false, tables.Wants{}, lastFlow{}, ToBackend, "", []string{"pod-device: SCTP sockets", "flabc", "address and the flow's ports decide which of 2"}},
		{"opted out", "tcp", true, tables.Wants{}, lastFlow{}, ToBackend, "", []string{"pod-device: shop/vm has opted out", "flabc"}},
		{"turns", "tcp", true, tables.Wants{Algorithm: uint8(lb.RoundRobin)}, lastFlow{}, ToBackend, "10.1.0.2:80", []string{"gets slot 1 of 2"}},
		{"its address", "tcp", true, tables.Wants{Algorithm: uint8(lb.SourceHash)}, lastFlow{}, ToBackend, "", []string{"the pod's address decides: always the same one of 2"}},
		{"affinity", "tcp", true, tables.Wants{Affinity: 60}, visit(990*second, 1), ToBackend, "10.1.0.2:80", []string{"keeps its backend for another 50s"}},
		{"affinity over", "tcp", true, tables.Wants{Affinity: 60}, visit(900*second, 1), ToBackend, "", []string{"was 1m40s ago"}},
		{"affinity of nobody", "tcp", true, tables.Wants{Affinity: 60}, lastFlow{}, ToBackend, "", []string{"has no backend yet"}},
		{"no backend", "sctp", false, tables.Wants{All: []string{}}, lastFlow{}, Dropped, "", []string{"dropped: no-backend", "cure", "pod-device"}},
		{"by its socket", "tcp", false, tables.Wants{}, lastFlow{}, ToBackend, "", []string{"socket: the socket is pointed", "raw sockets", "device flabc"}},
	} {
		t.Run(tt.question, func(t *testing.T) {
			a := newAsked()
			a.Layout = tables.NewLayout()
			tt.service.Name, tt.service.Frontends = "a/b/"+tt.protocol+"4", map[string]uint32{}
			if tt.service.All == nil {
				tt.service.All = []string{"10.1.0.1:80", "10.1.0.2:80"}
			}
			index := a.Add(tt.service)
			a.Services[index].Turn = 5
			proto := model.TCP
			if tt.protocol == "sctp" {
				proto = model.SCTP
			}
			a.Frontends[maps.KeyOf(netip.MustParseAddr("10.96.0.10"), 80, proto)] = maps.Svc{Service: index, Kind: maps.ClusterIP}
			a.pods = []snapshot.LocalPod{{Interface: 7, Device: "flabc", Addresses: []netip.Addr{netip.MustParseAddr(pod)}}}
			a.rememberedAddr = func(client netip.Addr, service *snapshot.Service) (lastFlow, error) {
				if client.String() != pod || service.Index != index {
					t.Errorf("asked for the affinity of %s to service %d", client, service.Index)
				}
				return tt.visit, nil
			}
			if tt.optedOut {
				a.optouts = []snapshot.Optout{{Pod: "shop/vm", Why: "annotation", Addrs: a.pods[0].Addresses}}
			}
			q := question("tcp " + pod + " 10.96.0.10:80")
			q.Protocol = proto
			e := a.ask(t, q)
			var text strings.Builder
			if err := e.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			next := ""
			if e.Next != nil {
				next = e.Next.String()
			}
			if e.Outcome != tt.outcome || next != tt.next {
				t.Errorf("%s, next is %q; want %s, %q", e.Outcome, next, tt.outcome, tt.next)
			}
			for _, says := range tt.says {
				if !strings.Contains(text.String(), says) {
					t.Errorf("%q is not in:\n%s", says, text.String())
				}
			}
		})
	}
}

// The source ranges of a load balancer apply to pods: their packets are checked at their devices.
func TestExplainPodDeviceRanges(t *testing.T) {
	for client, outcome := range map[string]Outcome{"10.1.0.9": ToBackend, "10.1.1.9": Dropped} {
		a := newAsked()
		index := a.Add(tables.Wants{Name: "shop/guarded/tcp4", Flags: maps.SourceRanges, All: []string{"10.1.0.1:80"},
			Frontends: map[string]uint32{"203.0.113.2:80": maps.LoadBalancer}})
		a.Ranges = tables.Ranges{{Service: index, Prefix: netip.MustParsePrefix("10.1.0.0/24")}}
		a.pods = []snapshot.LocalPod{{Device: "flabc", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("10.1.1.9")}}}
		if e := a.ask(t, question("tcp "+client+" 203.0.113.2:80")); e.Outcome != outcome || e.Forwarding != ByPodDevice || e.SourceRange == "" {
			t.Errorf("%s: %s by %q, want %s: %+v", client, e.Outcome, e.Forwarding, outcome, e)
		}
	}
}

// Source ranges admit the node's own sockets by the address that the node has outside.
func TestExplainNodeRanges(t *testing.T) {
	for admitted, outcome := range map[string]Outcome{"192.0.2.1/32": ToBackend, "192.0.2.2/32": LeftAlone, "2001:db8::/64": LeftAlone} {
		a := newAsked()
		index := a.Add(tables.Wants{Name: "shop/guarded/tcp4", Flags: maps.SourceRanges, All: []string{"10.1.0.1:80"},
			Frontends: map[string]uint32{"203.0.113.2:80": maps.LoadBalancer}})
		a.Ranges = tables.Ranges{{Service: index, Prefix: netip.MustParsePrefix(admitted)}}
		a.primary = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
		if e := a.ask(t, question("tcp 192.0.2.1 203.0.113.2:80")); e.Outcome != outcome {
			t.Errorf("ranges %s: %s (%s), want %s", admitted, e.Outcome, e.Reason, outcome)
		}
	}
}

// A note says that a pod's connections go to its proxy, unless they are not TCP or lead to the node
// itself.
func TestExplainProxy(t *testing.T) {
	for _, tt := range []struct {
		question string
		proxy    maps.Proxy
		want     bool
	}{
		{"tcp 10.1.0.9 10.96.0.10:80", maps.Proxy{Asked: true, Port: 15001}, true}, {"tcp 10.1.0.9 198.51.100.7:80", maps.Proxy{Asked: true, Port: 15001}, true},
		{"tcp 10.1.0.9 10.96.0.10:80", maps.Proxy{}, false}, {"udp 10.1.0.9 10.96.0.10:80", maps.Proxy{Asked: true, Port: 15001}, false},
		{"tcp 10.1.0.8 10.96.0.10:80", maps.Proxy{Asked: true, Port: 15001}, false},
	} {
		a := newAsked()
		a.Layout = tables.NewLayout()
		a.pods = []snapshot.LocalPod{{Interface: 7, Device: "flabc", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.9")}, Proxy: tt.proxy}}
		e := a.ask(t, question(tt.question))
		if got := len(e.Notes) == 1 && strings.Contains(e.Notes[0], "port 15001"); got != tt.want {
			t.Errorf("%s of a pod with %+v: %q", tt.question, tt.proxy, e.Notes)
		}
	}
}

// What is for an address of Services but for no port of one is refused, unless the client is opted out,
// a device of the node has the address, or clients outside may use it.
func TestExplainNowhere(t *testing.T) {
	for text, want := range map[string]Outcome{
		"tcp 10.1.0.9 10.96.0.10:81": Refused, "udp 10.1.0.9 10.96.0.10:80": Refused, "tcp node 10.96.7.7:80": Refused, "tcp 10.1.0.9 10.97.0.1:80": LeftAlone,
		"tcp 10.1.0.9 10.96.0.10:80": ToBackend, "tcp 10.1.0.9 10.96.0.77:80": LeftAlone, "tcp 10.1.0.9 192.0.2.1:81": LeftAlone,
	} {
		a := newAsked()
		a.Add(tables.Wants{Name: "shop/outside/tcp4", Frontends: map[string]uint32{"10.96.0.77:80": maps.ExternalOnly}})
		a.Ranges = tables.Ranges{
			{Service: maps.ClusterIPs, Prefix: netip.MustParsePrefix("10.96.0.0/16")}, {Service: maps.ClusterIPs, Prefix: netip.MustParsePrefix("192.0.2.0/24")},
		}
		e := a.ask(t, question(text))
		if e.Outcome != want || want == Refused && !strings.Contains(e.Reason, "10.96.0.0/16 is for ClusterIPs") {
			t.Errorf("%s: %s, %s; want %s", text, e.Outcome, e.Reason, want)
		}
	}
}
