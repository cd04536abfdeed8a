package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/snapshot"
	"fairlead.io/fairlead/pkg/ticks"
)

// enterFlow writes the rows of a flow as the programs do, each in the given state; 0xff means no
// row.
func enterFlow(t *testing.T, bpffs, which string, proto model.Protocol, addrs [4]string, states [2]uint8, idle uint32) {
	t.Helper()
	m, err := maps.Open(datapath.MapsDir(bpffs), false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	tick, err := ticks.Measure()
	if err != nil {
		t.Fatal(err)
	}
	now, err := tick.Now()
	if err != nil {
		t.Fatal(err)
	}
	at := func(i int) (maps.Addr, uint16) {
		addr := netip.MustParseAddrPort(addrs[i])
		return maps.AddrOf(addr.Addr()), maps.PortOf(addr.Port())
	}
	var request, reply maps.Flow
	request.Saddr, request.Sport = at(0)
	request.Daddr, request.Dport = at(1)
	reply.Daddr, reply.Dport = at(2)
	reply.Saddr, reply.Sport = at(3)
	request.Proto, reply.Proto = uint8(proto), uint8(proto)
	to := m.Ct
	if which == "ct_pending" {
		to = m.CtPending
	}
	for i, keys := range [][2]maps.Flow{{request, reply}, {reply, request}} {
		if states[i] == 0xff {
			continue
		}
		row := maps.FlowRow{
			Saddr: keys[1].Daddr, Daddr: keys[1].Saddr, Sport: keys[1].Dport, Dport: keys[1].Sport, Seen: now - idle, State: states[i],
		}
		if request.Saddr == reply.Daddr {
			row.Kind = uint8(maps.FlowLocal)
		}
		if i == 1 {
			row.Kind |= maps.FlowReply
		}
		row.Checksum = maps.ChecksumOf(keys[0], row)
		if err := to.Put(keys[0], row); err != nil {
			t.Fatal(err)
		}
	}
}

// flowNode is a node without an agent that remembers flows of every kind.
func flowNode(t *testing.T) (bpffs string) {
	t.Helper()
	bpffs = deadNode(t)
	open, closing, none := maps.FlowOpen, maps.FlowClosing, uint8(0xff)
	local := [4]string{"198.51.100.1:4001", "192.0.2.1:30080", "198.51.100.1:4001", "10.1.0.1:8080"}
	remote := [4]string{"198.51.100.2:4002", "192.0.2.1:30080", "192.0.2.1:61000", "10.1.1.1:8080"}
	six := [4]string{"[2001:db8::7]:4003", "[2001:db8::1]:30053", "[2001:db8::7]:4003", "[fd00::5]:53"}
	half := [4]string{"198.51.100.4:4004", "192.0.2.1:30080", "192.0.2.1:61001", "10.1.1.1:8080"}
	answered := [4]string{"198.51.100.5:4005", "192.0.2.1:30053", "192.0.2.1:61002", "10.1.1.1:53"}
	lone := [4]string{"198.51.100.6:4006", "192.0.2.1:30080", "192.0.2.1:61003", "10.1.1.2:8080"}
	enterFlow(t, bpffs, "ct", model.TCP, local, [2]uint8{open, open}, 100)
	enterFlow(t, bpffs, "ct", model.TCP, remote, [2]uint8{closing, open}, 0)
	enterFlow(t, bpffs, "ct", model.UDP, six, [2]uint8{open, open}, 0)
	enterFlow(t, bpffs, "ct", model.TCP, lone, [2]uint8{none, closing}, 0)
	enterFlow(t, bpffs, "ct_pending", model.TCP, half, [2]uint8{maps.FlowNew, maps.FlowNew}, 0)
	enterFlow(t, bpffs, "ct_pending", model.UDP, answered, [2]uint8{maps.FlowAnswered, maps.FlowNew}, 0)
	return bpffs
}

// sortedLines returns the sorted lines of a list without its header. The list has no order.
func sortedLines(t *testing.T, r result) []string {
	t.Helper()
	if r.code != exitOK {
		t.Fatalf("exit code %d: %s", r.code, r.stderr)
	}
	var lines []string
	for line := range strings.Lines(r.stdout) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	slices.Sort(lines[1:])
	return lines
}

func TestConntrackList(t *testing.T) {
	bpffs := flowNode(t)
	header := "PROTO STATE KIND IDLE CLIENT FRONTEND BACKEND"
	lines := map[string]string{
		"local":    "tcp open local 102s 198.51.100.1:4001 192.0.2.1:30080 10.1.0.1:8080",
		"remote":   "tcp half-closed remote 0s 198.51.100.2:4002 192.0.2.1:30080 10.1.1.1:8080",
		"six":      "udp open local 0s [2001:db8::7]:4003 [2001:db8::1]:30053 [fd00::5]:53",
		"half":     "tcp new remote 0s 198.51.100.4:4004 192.0.2.1:30080 10.1.1.1:8080",
		"answered": "udp answered remote 0s 198.51.100.5:4005 192.0.2.1:30053 10.1.1.1:53",
		"lone":     "tcp closed (no request) remote 0s 198.51.100.6:4006 192.0.2.1:30080 10.1.1.2:8080",
	}
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"local", "remote", "six", "half", "answered", "lone"}},
		{[]string{"--src", "198.51.100.2"}, []string{"remote"}},
		{[]string{"--src", "198.51.100.0/30"}, []string{"local", "remote"}},
		{[]string{"--src", "::ffff:198.51.100.2"}, []string{"remote"}},
		{[]string{"--dst", "10.1.1.1"}, []string{"remote", "half", "answered"}},
		{[]string{"--dst", "2001:db8::/32"}, []string{"six"}},
		{[]string{"--port", "8080"}, []string{"local", "remote", "half", "lone"}},
		{[]string{"--port", "30053"}, []string{"six", "answered"}},
		{[]string{"--port", "4001"}, nil},
		{[]string{"--proto", "udp"}, []string{"six", "answered"}},
		{[]string{"--proto", "6", "--state", "new"}, []string{"half"}},
		{[]string{"--state", "half-closed"}, []string{"remote"}},
		{[]string{"--state", "open", "--proto", "tcp"}, []string{"local"}},
		{[]string{"--state", "reset"}, nil},
	} {
		want := []string{header}
		for _, name := range tt.want {
			want = append(want, lines[name])
		}
		slices.Sort(want[1:])
		have := sortedLines(t, fairlead(t, append([]string{"conntrack", "list", "--bpffs", bpffs}, tt.args...)...))
		for i := range have { // a tick may have passed, and the length of ticks differs
			have[i] = strings.NewReplacer(" 1s ", " 0s ", " 128s ", " 102s ", " 129s ", " 102s ", " 103s ", " 102s ", " 85s ", " 102s ",
				" 86s ", " 102s ").Replace(have[i])
		}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%q (-want +have):\n%s", tt.args, diff)
		}
	}
}

func TestNATList(t *testing.T) {
	bpffs := flowNode(t)
	want := []string{
		"PROTO ORIGINAL TRANSLATED",
		"tcp 198.51.100.1:4001 -> 192.0.2.1:30080 198.51.100.1:4001 -> 10.1.0.1:8080",
		"tcp 198.51.100.2:4002 -> 192.0.2.1:30080 192.0.2.1:61000 -> 10.1.1.1:8080",
		"tcp 198.51.100.6:4006 -> 192.0.2.1:30080 192.0.2.1:61003 -> 10.1.1.2:8080",
	}
	have := sortedLines(t, fairlead(t, "nat", "list", "--bpffs", bpffs, "--proto", "tcp", "--dst", "10.1.0.0/16"))
	have = slices.DeleteFunc(have, func(line string) bool { return strings.Contains(line, "61001") })
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-want +have):\n%s", diff)
	}
}

// TestConntrackFormats checks that flows, which are written one by one, make valid JSON or YAML,
// even if there is none or only one.
func TestConntrackFormats(t *testing.T) {
	bpffs := flowNode(t)
	for _, tt := range []struct {
		args []string
		want int
	}{
		{nil, 6}, {[]string{"--src", "198.51.100.2"}, 1}, {[]string{"--src", "203.0.113.1"}, 0},
	} {
		args := append([]string{"conntrack", "list", "--bpffs", bpffs}, tt.args...)
		var asJSON, asYAML []snapshot.Flow
		if err := json.Unmarshal([]byte(fairlead(t, append(args, "-o", "json")...).stdout), &asJSON); err != nil {
			t.Errorf("%q: %v", tt.args, err)
		}
		if err := yaml.Unmarshal([]byte(fairlead(t, append(args, "-o", "yaml")...).stdout), &asYAML); err != nil {
			t.Errorf("%q: %v", tt.args, err)
		}
		if len(asJSON) != tt.want || asJSON == nil {
			t.Errorf("%q: %d flows, want %d", tt.args, len(asJSON), tt.want)
		}
		if diff := cmp.Diff(len(asJSON), len(asYAML)); diff != "" {
			t.Errorf("%q: JSON and YAML differ:\n%s", tt.args, diff)
		}
	}
}

func TestConntrackFlush(t *testing.T) {
	bpffs := flowNode(t)
	count := func() int {
		return len(sortedLines(t, fairlead(t, "conntrack", "list", "--bpffs", bpffs))) - 1
	}
	for _, tt := range []struct {
		args   []string
		code   int
		stdout string
		left   int
	}{
		{nil, exitUsage, "", 6},
		{[]string{"--all", "--src", "198.51.100.1"}, exitUsage, "", 6},
		{[]string{"--src", "nobody"}, exitUsage, "", 6},
		{[]string{"--proto", "smtp"}, exitUsage, "", 6},
		{[]string{"--state", "shut"}, exitUsage, "", 6},
		{[]string{"--src", "203.0.113.1"}, exitOK, "forgot 0 flows\n", 6},
		{[]string{"--src", "198.51.100.1"}, exitOK, "forgot 1 flows\n", 5},
		{[]string{"--proto", "udp"}, exitOK, "forgot 2 flows\n", 3},
		{[]string{"--all"}, exitOK, "forgot 3 flows\n", 0},
	} {
		r := fairlead(t, append([]string{"conntrack", "flush", "--bpffs", bpffs}, tt.args...)...)
		if r.code != tt.code || r.stdout != tt.stdout {
			t.Errorf("%q: exit code %d, %q; want %d, %q; %s", tt.args, r.code, r.stdout, tt.code, tt.stdout, r.stderr)
		}
		if have := count(); have != tt.left {
			t.Errorf("%q: %d flows are left, want %d", tt.args, have, tt.left)
		}
	}
	if r := fairlead(t, "conntrack", "list", "--bpffs", filepath.Join(bpffs, "elsewhere")); r.code != exitError || !strings.Contains(r.stderr, "no fairlead maps under") {
		t.Errorf("without maps: %d, %s", r.code, r.stderr)
	}
}

// TestConntrackListGrowing checks that a list has each flow once while the map of flows grows.
// Flows are in two maps then: some in both, and some with one direction in each.
func TestConntrackListGrowing(t *testing.T) {
	bpffs := flowNode(t)
	list := func() map[string]string {
		var flows []snapshot.Flow
		r := fairlead(t, "conntrack", "list", "-o", "json", "--bpffs", bpffs)
		if err := json.Unmarshal([]byte(r.stdout), &flows); err != nil {
			t.Fatalf("%v: %+v", err, r)
		}
		have := map[string]string{}
		for _, f := range flows {
			if _, twice := have[f.Client.String()]; twice {
				t.Errorf("%s is listed twice", f.Client)
			}
			f.IdleSeconds = nil
			have[f.Client.String()] = fmt.Sprintf("%+v", f)
		}
		return have
	}
	want := list()
	root := filepath.Dir(datapath.MapsDir(bpffs))
	if err := os.Mkdir(filepath.Join(root, maps.GrowthDir), 0o700); err != nil {
		t.Fatal(err)
	}
	next, err := maps.NewFlowMap(1 << 18)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if err := maps.PinFlowMap(next, filepath.Join(root, maps.GrowthDir, "ct")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, list()); diff != "" {
		t.Errorf("before a flow has moved (-want +have):\n%s", diff)
	}
	m, err := maps.Open(datapath.MapsDir(bpffs), false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var buffer maps.FlowBuffer
	moved := 0
	err = maps.EachFlow(m.Ct, &buffer, func(keys []maps.Flow, rows []maps.FlowRow) error {
		for i, key := range keys {
			proto, reply := model.Protocol(key.Proto), rows[i].Kind&maps.FlowReply != 0
			if proto == model.TCP && !reply && maps.FlowSource(key).Port() == 4002 {
				continue // only the larger map has the other direction
			}
			moved++
			if maps.FlowSource(key).Port() == 4001 { // once it has moved, it continues there
				rows[i].State = maps.FlowReset
			}
			if err := next.Put(key, rows[i]); err != nil {
				return err
			}
			if proto == model.UDP || maps.FlowDestination(key).Port() == 61000 {
				if err := m.Ct.Delete(key); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil || moved != 6 {
		t.Fatalf("%d rows were moved, %v", moved, err)
	}
	want["198.51.100.1:4001"] = strings.Replace(want["198.51.100.1:4001"], "State:open", "State:reset", 1)
	if diff := cmp.Diff(want, list()); diff != "" {
		t.Errorf("of two maps (-want +have):\n%s", diff)
	}
	if r := fairlead(t, "conntrack", "flush", "--bpffs", bpffs, "--proto", "udp"); r.code != exitError || !strings.Contains(r.stderr, "run it again") {
		t.Errorf("flush while the map grows: %d, %s", r.code, r.stderr)
	}
}
