package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/bench/flow"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/topology"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) {
	funcs := flow.Funcs()
	funcs["peer"] = peerMain
	os.Exit(rig.Main(m, funcs))
}

func TestParse(t *testing.T) {
	tests := []struct {
		arguments []string
		want      []int
		fails     string
	}{
		{nil, []int{1, 1000, 20_000, 100_000}, ""},
		{[]string{"-services=7,3,7"}, []int{3, 7}, ""},
		{[]string{"-services="}, nil, "one number at least"},
		{[]string{"-services=1,many"}, nil, `"many" is not a number`},
		{[]string{"-services=0"}, nil, `"0" is not a number`},
		{[]string{"-effort=0"}, nil, "does nothing"},
		{[]string{"more"}, nil, "unexpected argument"},
	}
	for _, tt := range tests {
		have, err := parse(tt.arguments)
		if tt.fails != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("%q: have error %v, want one with %q", tt.arguments, err, tt.fails)
			}
			continue
		}
		if err != nil || !cmp.Equal(have.services, tt.want) {
			t.Errorf("%q: have %v and %v, want %v", tt.arguments, have.services, err, tt.want)
		}
	}
	if have, err := parse([]string{"-kube-proxy="}); err != nil || len(have.numbers) > 0 {
		t.Errorf("without kube-proxy: have %v and %v", have.numbers, err)
	}
}

// newSetup returns a stage without kube-proxy.
func newSetup(t *testing.T, services ...int) *setup {
	t.Helper()
	rig.Root(t)
	rig.NoLeaks(t)
	report, err := result.Begin(result.Config{Benchmark: "socket", Path: filepath.Join(t.TempDir(), "socket.json"), Out: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	s := &setup{options: options{services: services, effort: 1e-9}, report: report}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// sendTraffic sends traffic over a way.
func sendTraffic(ctx context.Context, w *way, what workload, family topology.Family) error {
	_, err := w.variant(what, family).Run(ctx)
	return err
}

// Every kind of traffic works over every way; with nothing attached, none works that dials a
// service.
func TestWays(t *testing.T) {
	s := newSetup(t, 40)
	for _, what := range workloads(s.effort) {
		for _, w := range []*way{s.direct, s.past("past", s.agents[0].hooks)} {
			if err := sendTraffic(t.Context(), w, what, topology.IPv4); err != nil {
				t.Errorf("%s, %s: %v", what.row, w.name, err)
			}
		}
		for _, family := range families() {
			for _, w := range append([]*way{s.minimum}, s.ways...) {
				if err := sendTraffic(t.Context(), w, what, family); err != nil {
					t.Errorf("%s, %s, %s: %v", what.row, family, w.name, err)
				}
			}
		}
	}
	connect := workloads(s.effort)[1]
	for _, w := range append([]*way{s.minimum}, s.ways...) {
		bare := *w
		bare.attach = nil
		// Without programs, the kernel may send request after request into the void.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/4)
		if err := sendTraffic(ctx, &bare, connect, topology.IPv4); err == nil {
			t.Errorf("%s: the service answers although nothing serves it", w.name)
		}
		cancel()
	}
}

// With every record a socket learns the address that it dialed; without one it learns the
// backend's.
func TestRecords(t *testing.T) {
	s := newSetup(t, 1)
	f := fleet{1, s.top.Servers[0].Addr}
	server := netip.AddrPortFrom(f.server(topology.IPv4), serverPort)
	var listener net.Listener
	if err := s.top.Servers[0].Do(func() (err error) {
		listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp4", server.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, r := range records() {
		hooks, err := r.load(s.agents[0].maps)
		if err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		s.parts = append(s.parts, hooks)
		attached, err := s.through(r.name, f, hooks).attach()
		if err != nil {
			t.Fatal(err)
		}
		want := f.frontend(topology.IPv4)
		if r.number == 0 {
			want = server
		}
		have := rig.Child(t, s.top.Cgroup, s.top.Client.Netns, "peer", f.frontend(topology.IPv4).String())
		if strings.TrimSpace(have) != want.String() {
			t.Errorf("%s: the peer is %s, want %s", r.name, have, want)
		}
		if err := attached.Close(); err != nil {
			t.Error(err)
		}
	}
}

// peerMain connects and prints the peer of the socket.
func peerMain(args []string) int {
	conn, err := new(net.Dialer).Dial("tcp4", args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer conn.Close()
	fmt.Println(conn.RemoteAddr())
	return 0
}

// kube-proxy's rules lead to the server in either mode, even as the last of several services.
func TestProxies(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	report, err := result.Begin(result.Config{Benchmark: "socket", Path: filepath.Join(t.TempDir(), "socket.json"), Out: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	s := &setup{options: options{numbers: []int{3}, nft: 3}, report: report}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.startProxies(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(s.proxies) == 0 {
		rig.Lacking(t, "cluster", "kube-proxy is not built; \"go run ./test/cluster build\" does that")
	}
	for _, w := range s.proxyWays(workload{tcp: true}, topology.IPv4) {
		if err := sendTraffic(t.Context(), w, workloads(1e-9)[1], topology.IPv4); err != nil {
			t.Errorf("%s: %v", w.name, err)
		}
	}
}

// The command writes a row for every way, with goals in the right rows.
func TestRun(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	path := filepath.Join(t.TempDir(), "socket.json")
	err := run(t.Context(), []string{
		"-output=" + path, "-rounds=9", "-effort=1e-9", "-services=2", "-kube-proxy=", "-only=UDP send, not connected, IPv6",
	}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	rows, err := result.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	goals := map[string]float64{}
	for _, r := range rows {
		if r.Metric == median && r.Row == "socket/UDP send, not connected, IPv6" {
			goals[r.Case] = r.Goal
		}
	}
	want := map[string]float64{"bare minimum": 0, "to no service, 2 services there": 250, "2 services": 250}
	if diff := cmp.Diff(want, goals); diff != "" || len(rows) != 2*len(want) {
		t.Errorf("%d rows; goals (-want +have):\n%s", len(rows), diff)
	}
	if slices.ContainsFunc(rows, func(r result.Row) bool { return r.Ratio != 0 }) {
		t.Error("a row has a ratio, although the goals are on differences to the yardstick")
	}
}
