package observe

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/agent/life"
	"fairlead.io/fairlead/pkg/bigtcp"
	"fairlead.io/fairlead/pkg/congestion"
	"fairlead.io/fairlead/pkg/conntrack"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/routes"
	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/pkg/source"
	"fairlead.io/fairlead/test/goldenfile"
)

func sampleStatus() Status {
	entries := 12
	at := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	return Status{
		Version: "v1.2.3", Node: "worker-1", Started: at,
		Source: &source.Status{Kind: "kubernetes", Server: "192.0.2.10:6443", Configured: "192.0.2.10:6443", Synced: true, LastChange: at},
		Reconcile: &reconcile.Status{Passes: 4, LastDuration: 1234567, LastTime: at,
			Verify: reconcile.VerifyStatus{Checks: 60, Found: 2, Mended: 1, LastTime: at},
			Quotas: []reconcile.QuotaUse{{Quota: "frontends", Namespace: "shop", Wanted: 12, Limit: 1000}, {Quota: "slots", Namespace: "b\x1b[2Jd", Wanted: 900, Limit: 1000}, {Quota: "backends", Namespace: "shop", Wanted: 24, Limit: 1000}}},
		Datapath: datapath.Status{
			CgroupRoot: "/sys/fs/cgroup", Programs: []datapath.ProgramStatus{{Name: "sock_connect4", Attached: true, ID: 7}},
			Features: map[string]bool{"refuse": true},
			Attachment: &datapath.Attachment{Checked: at, Mended: 1, Proofs: []datapath.Proof{
				{Family: "IPv4", State: datapath.Proven}, {Family: "IPv6", State: datapath.Proven},
			}},
			Outside: &datapath.Outside{
				Devices: []datapath.DeviceStatus{
					{Name: "eth0", MTU: 1500, Why: "it has the default route", TC: "tcx", XDP: "native"},
					{Name: "eth1", MTU: 9000, Why: "it has an address", TC: "clsact", XDPWhy: "the driver has no native XDP"},
					{Name: "flvxlan0", MTU: 1450, Why: "it leads to the pods of other nodes", TC: "tcx", XDPWhy: "off", Tunnel: true},
				},
				Addr4: netip.MustParseAddr("192.0.2.1"), Addr6: netip.MustParseAddr("2001:db8::1"), SnatPorts: "1024-29999", Mended: 1,
			},
		},
		Services: 3, Frontends: 5, Backends: 7,
		Flows: &conntrack.Status{Rows: 200, Capacity: 131072, PendingRows: 4, PendingCapacity: 16384, Forgotten: 9, LastTime: at, LastDuration: 345678},
		Snat: &mapstats.SnatPorts{Uses: []mapstats.SnatUse{
			{User: "others", Used: 700, Limit: 14448, Protocol: "tcp", Destination: netip.MustParseAddrPort("10.2.0.9:80")},
			{User: "pods", Used: 5, Limit: 14448, Protocol: "udp", Destination: netip.MustParseAddrPort("203.0.113.1:53")}, {User: "one-pod", Limit: 7224},
		}},
		Routes: &routes.Status{Following: true, Changes: 17, LastChange: at, Neighbors: 23},
		PodNetwork: &PodNetwork{Status: podnet.Status{
			Needed: []string{"net.ipv4.ip_forward=1", "net.ipv4.conf.DEVICE.rp_filter=0"},
			Mode:   "main", CIDRs: []string{"10.1.0.0/24", "fd00:1::/64"}, Pods: 3, Mended: 1, Device: "veth", Netkits: 1,
			Addresses: map[string]podnet.AddressCount{"IPv4": {Used: 3, Cooling: 2, Free: 249}, "IPv6": {Used: 3, Free: 1.8e19}},
		},
			BigTCP:    &bigtcp.Status{V4: 196608, Why6: "device eth1 takes 65536 bytes at most", Devices: []string{"eth0", "eth1"}},
			Bandwidth: &queues.Status{Devices: []string{"eth0", "eth1"}, Pods: 2, Dropped: 5, Congestion: "cubic"},
			Routing:   &fabric.Status{Mode: "native", Nodes: 2, Routes: 6, Mended: 1, Left: []string{"10.4.0.0/24 of node n4: it is far"}},
		},
		Policies:  &source.PolicyStatus{Count: new(3), Checked: at},
		Pins:      &datapath.Pins{Restored: 2, Last: []string{"ct", "svcs"}, LastTime: at},
		Fragments: mapstats.Fragments{Stored: 31, Returned: 29, Lost: 1, Refused: 2},
		Maps: []mapstats.Map{
			{Name: "svcs", Type: "Hash", Row: "a -> b", WrittenBy: "reconciler", ReadBy: "sock", Entries: &entries,
				Capacity: 48, Pressure: 0.25, Memory: 3 << 19, Pin: "/pins/svcs", Schema: "v1"},
			{Name: "ct_pending", Type: "LRUHash", Row: "e -> f", WrittenBy: "tc", ReadBy: "tc", Entries: &entries,
				Capacity: 16, Pressure: 0.75, Evictions: new(uint64(7)), Memory: 4096, Pin: "/pins/ct_pending", Schema: "v1"},
			{Name: "sock_origins", Type: "SkStorage", Row: "c -> d", WrittenBy: "sock", ReadBy: "sock", Memory: 512},
		},
		Problems: []model.ObjectProblem{{Object: "shop/web", Problem: model.Problem{Reason: "FrontendConflict", Message: "10.96.0.1:80/tcp belongs to shop/other."}}},
		Degraded: []string{},
	}
}

func TestStatusText(t *testing.T) {
	s := sampleStatus()
	var out bytes.Buffer
	if err := s.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	goldenfile.Compare(t, "status.txt", out.String())
	s.Maps[0].SetEntries(47)
	s.Datapath.Programs[0].Attached = false
	s.Datapath.Features["refuse"] = false
	s.Routes.Following = false
	s.Policies.Count, s.Policies.Error = nil, "count NetworkPolicies: forbidden"
	s.Datapath.Attachment.Proofs = []datapath.Proof{{Family: "IPv4", State: datapath.Missed, Why: "let pass"}, {Family: "IPv6", State: "absent", Why: "no such sockets"}}
	s.Source.Synced, s.Source.Missing = false, []string{"nodes", "pods"}
	s.Source.Server = "192.0.2.11:6443" // the configured one does not answer
	s.Reconcile.Dirty, s.Reconcile.Errors, s.Reconcile.LastError = 2, 9, "insert svcs: no space"
	o := s.Datapath.Outside
	o.Devices[1].TC, o.Devices[1].Error = "", "attach tc_to_netdev: no memory"
	o.Missing, o.Unknown, o.NotForward = []string{"eth7"}, []netip.Addr{netip.MustParseAddr("192.0.2.9")}, []string{"net.ipv4.ip_forward"}
	s.FindProblems()
	out.Reset()
	if err := s.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	goldenfile.Compare(t, "degraded.txt", out.String())
}

// The status of an agent that does not serve Services neither mentions them nor misses them.
func TestStatusOfAccelerateOnly(t *testing.T) {
	s := Status{Mode: "accelerate-only", Source: &source.Status{Kind: "kubernetes", Synced: true}}
	s.Datapath.CgroupRoot = "/sys/fs/cgroup"
	if s.FindProblems(); !slices.Equal(s.Degraded, []string{"No connection bypasses TCP yet."}) {
		t.Errorf("before it works: %q", s.Degraded)
	}
	s.Sockmap = &sockmap.Status{State: sockmap.State{On: true}, RuleStatus: sockmap.RuleStatus{Pods: 2}, Differences: []string{"MSG_WAITALL returns short", "another"}}
	s.FindProblems()
	var out bytes.Buffer
	if err := s.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	goldenfile.Compare(t, "accelerate-only.txt", out.String())
}

func TestStatusJSON(t *testing.T) {
	want := sampleStatus()
	text, err := json.MarshalIndent(want, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	goldenfile.Compare(t, "status.json", string(text)+"\n")
	var got Status
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("a status changed in transit (-sent +received):\n%s", diff)
	}
}

func TestFindings(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Status)
		want   []string // a part of each sentence
	}{
		{"healthy", func(*Status) {}, nil},
		{"before the first pass", func(s *Status) { s.Reconcile = nil }, nil},
		{"errors that are over", func(s *Status) { s.Reconcile.Errors = 5 }, nil},
		{"not synced", func(s *Status) { s.Source.Synced, s.Source.Missing = false, []string{"nodes"} }, []string{"missing: nodes"}},
		{"bad file", func(s *Status) {
			s.Source.Errors = []source.StatusError{{Where: "web.yaml", Message: "line 3: no colon"}}
		}, []string{"web.yaml: line 3"}},
		{"failing", func(s *Status) { s.Reconcile.LastError, s.Reconcile.Dirty = "boom", 3 }, []string{"3 changes wait for a retry: boom"}},
		{"no maps", func(s *Status) { s.Maps = nil }, []string{"no maps"}},
		{"nothing past TCP", func(s *Status) { s.Sockmap = &sockmap.Status{Error: "boom"} }, []string{"No connection bypasses TCP. This is slower but otherwise correct: boom"}},
		{"stale past TCP", func(s *Status) {
			s.Sockmap = &sockmap.Status{State: sockmap.State{On: true}, RuleStatus: sockmap.RuleStatus{Stale: "boom"}}
		}, []string{"rules that are out of date: boom"}},
		{"left past TCP", func(s *Status) {
			s.Sockmap = &sockmap.Status{Error: "boom", RuleStatus: sockmap.RuleStatus{Stale: "bang"}}
		}, []string{"No connection should bypass TCP: boom. Some may: bang"}},
		{"left out past TCP", func(s *Status) {
			s.Sockmap = &sockmap.Status{State: sockmap.State{On: true}, RuleStatus: sockmap.RuleStatus{Rated: 1, NotCovered: 3, Uncovered: map[string]string{"shop/web": "boom"}}}
		}, []string{"Connections of pod shop/web use TCP although they may bypass it: boom", "So do those of 2 more pods"}},
		{"unknown past TCP", func(s *Status) { s.Sockmap = &sockmap.Status{Unread: "boom"} }, []string{"What bypasses TCP is unknown: boom"}},
		{"a pin is gone", func(s *Status) { s.Pins = &datapath.Pins{Missing: []string{"/pins/svcs"}} },
			[]string{"Somebody has removed or replaced pins: /pins/svcs. The maps go on, but commands cannot read them. The agent pins them again within seconds."}},
		{"all pins are gone, for good", func(s *Status) {
			s.Maps, s.Pins = nil, &datapath.Pins{Missing: []string{"a", "b", "c", "d", "e"}, Error: "no room"}
		}, []string{"replaced pins: a, b, c and 2 more. ", "cannot be restored: no room."}},
		{"pins were restored", func(s *Status) { s.Pins = &datapath.Pins{Restored: 2, Last: []string{"a", "b"}} }, nil},
		{"no programs", func(s *Status) { s.Datapath.Programs = nil }, []string{"No program is attached"}},
		{"not at work", func(s *Status) {
			s.Datapath.Attachment.Proofs = []datapath.Proof{{Family: "IPv4", State: datapath.Missed, Why: "let pass"}, {Family: "IPv6", State: datapath.Missed, Why: "let pass"}}
		}, []string{"attached to /sys/fs/cgroup, but the agent's own test connections over IPv4 and IPv6 do not go through them (let pass)"}},
		{"each family for another reason", func(s *Status) {
			s.Datapath.Attachment.Proofs = []datapath.Proof{{Family: "IPv4", State: datapath.Missed, Why: "let pass"}, {Family: "IPv6", State: datapath.Missed, Why: "unreachable"}}
		}, []string{"over IPv4 do not go through them (let pass)", "over IPv6 do not go through them (unreachable)"}},
		{"one family switched off", func(s *Status) {
			s.Datapath.Attachment.Proofs[1] = datapath.Proof{Family: "IPv6", State: "absent", Why: "x"}
		}, nil},
		{"cannot tell", func(s *Status) {
			s.Datapath.Attachment.Proofs[0] = datapath.Proof{Family: "IPv4", State: "unknown", Why: "x"}
		}, nil},
		{"not checked", func(s *Status) { s.Datapath.Attachment = nil }, nil},
		{"nothing but the tunnel", func(s *Status) { s.Datapath.Outside.Devices = s.Datapath.Outside.Devices[2:] },
			[]string{"Clients outside are not served: no device has a default route"}},
		{"cannot be mended", func(s *Status) { s.Datapath.Attachment.Error = "no such cgroup" }, []string{"reattached: no such cgroup."}},
		{"no flow is forgotten", func(s *Status) { s.Flows.Error = "no clock" }, []string{"not removed: no clock."}},
		{"many flows", func(s *Status) { s.Flows.Rows = 117_000 }, nil},
		{"too many flows", func(s *Status) { s.Flows.Rows = 118_000 }, []string{"has 131072 rows, and 118000 are in use"}},
		{"ports are nearly used up", func(s *Status) { s.Snat.Uses[0].Used = 14000 }, nil},
		{"ports toward a backend are used up", func(s *Status) {
			s.Snat.Uses[0].Used, s.Snat.RefusedLately, s.Snat.RefusedEnd = 14440, 1300, time.Unix(1000, 0)
		}, []string{"SNAT ports are used up: clients' flows to 10.2.0.9:80/tcp use 14440 of 14448 SNAT ports. Of new flows, 1300 packets were refused"}},
		{"a pod has used up its ports", func(s *Status) {
			s.Snat.Uses[2] = mapstats.SnatUse{User: "one-pod", Used: 7224, Limit: 7224, Protocol: "udp", Destination: netip.MustParseAddrPort("203.0.113.1:53"), Pod: netip.MustParseAddr("10.1.0.5")}
			s.Snat.RefusedLately = 1
		}, []string{"flows of pod 10.1.0.5 to 203.0.113.1:53/udp use 7224 of 7224 SNAT ports. "}},
		{"ports are free again", func(s *Status) { s.Snat.RefusedLately, s.Snat.RefusedEnd = 1300, time.Unix(1000, 0) }, []string{
			"Ports are free again: at most, clients' flows to 10.2.0.9:80/tcp use 700 of 14448 SNAT ports. Unless more are refused, this is over by 1970-01-01T00:16:40Z."}},
		{"no port is used any more", func(s *Status) { s.Snat = &mapstats.SnatPorts{RefusedLately: 1} }, []string{"No flow uses one now."}},
		{"no addresses for pods", func(s *Status) {
			s.PodNetwork = &PodNetwork{Status: podnet.Status{Error: "the Node n1 has no podCIDR", Settings: []string{"net.ipv4.ip_forward"}, CIDRs: []string{"10.1.0.0/31"},
				Addresses: map[string]podnet.AddressCount{"IPv4": {Used: 2}, "IPv6": {Used: 2, Cooling: 1}}}}
		}, []string{
			"No pod can be added to this node: the Node n1 has no podCIDR.", "No IPv4 address is left for new pods: 2 are in use in 10.1.0.0/31.",
			"not forwarded: net.ipv4.ip_forward is not set. \"fairlead init\"",
		}},
		{"networks of nodes are refused", func(s *Status) { s.PodNetwork.Routing.Refused = []string{"podCIDR 0.0.0.0/0 of node n2: no", "b"} },
			[]string{"2 networks that nodes claim for their pods get no route. The first is: podCIDR 0.0.0.0/0 of node n2: no."}},
		{"nodes are not believed", func(s *Status) { s.Disbelieved = []string{"10.2.0.7 of node n2: another node has it", "b"} },
			[]string{"2 claims of Nodes to addresses or networks are not believed, and what comes from there is not taken for that node's. The first is: 10.2.0.7 of node n2"}},
		{"devices are not as large as they should be", func(s *Status) { s.PodNetwork.BigTCP.Error = "no permission" }, []string{"as they should: no permission."}},
		{"pods may be too fast", func(s *Status) { s.PodNetwork.Bandwidth.Error = "no permission" }, []string{"Pods may send faster than they should: no permission."}},
		{"pods cannot have BBR", func(s *Status) { s.PodNetwork.Bandwidth.BBR = &congestion.Status{Error: "the kernel has none"} }, []string{
			"Pods' connections use cubic instead of BBR: the kernel has none."}},
		{"a device has another queue", func(s *Status) { s.PodNetwork.Bandwidth.Lacking = map[string]string{"eth1": "its queue is htb"} }, []string{
			"Packets do not wait at device eth1 for their time to leave. If that is too far ahead, they are dropped: its queue is htb.",
		}},
		{"no way to other nodes", func(s *Status) { s.PodNetwork.Routing.Error = "no buffer space" }, []string{"may be unreachable: no buffer space."}},
		{"no way to other nodes yet", func(s *Status) { s.PodNetwork.Routing.Pending = true }, []string{"the routes to them are not written yet."}},
		{"changes of routes are not followed", func(s *Status) { s.Routes = &routes.Status{Error: "no buffer space"} }, []string{"its packets cost more: no buffer space."}},
		{"agents were killed a few times", func(s *Status) { s.Agent = &life.Status{Killed: 50, KilledLately: 4, LastKilled: time.Unix(1000, 0)} }, nil},
		{"agents were killed again and again", func(s *Status) { s.Agent = &life.Status{Killed: 10, KilledLately: 10, LastKilled: time.Unix(1000, 0)} }, []string{
			"has ended 10 times in the last 10 minutes without having been told to, the last time at 1970-01-01T00:16:40Z."}},
		{"far from the memory limit", func(s *Status) {
			s.Agent = &life.Status{MemoryUsed: 89 << 20, MemoryLimit: 100 << 20, MemoryFile: "/x"}
		}, nil},
		{"near the memory limit", func(s *Status) {
			s.Agent = &life.Status{MemoryUsed: 90 << 20, MemoryLimit: 100 << 20, MemoryFile: "/x"}
		}, []string{
			"uses 90.0 MiB of the 100.0 MiB of memory that it may use (/x)"}},
		{"a device has no carrier", func(s *Status) { s.Datapath.Outside.Devices[0].Link = datapath.NoCarrier }, []string{"Device eth0 has no carrier"}},
		{"a device is down, and nothing is served", func(s *Status) {
			s.Datapath.Outside.Idle, s.Datapath.Outside.Devices[0].Link = true, datapath.LinkDown
		}, []string{"\"ip link set eth0 up\""}},
		{"one idle", func(s *Status) { s.Datapath.Programs[0].Attached, s.Datapath.Programs[0].Idle = false, true }, nil},
		{"one detached", func(s *Status) { s.Datapath.Programs[0].Attached = false }, []string{"sock_connect4 is not attached"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := sampleStatus()
			tt.change(&s)
			s.FindProblems()
			if !slices.EqualFunc(s.Degraded, tt.want, strings.Contains) {
				t.Errorf("degraded: %q, want %q", s.Degraded, tt.want)
			}
		})
	}
}

func TestStatusHasNoNull(t *testing.T) {
	var s Status
	s.FindProblems()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "null") {
		t.Errorf("%s", text)
	}
}

// A manifest may name its objects as no API server would let it: what a terminal would obey is quoted.
func TestStatusOfHostileNames(t *testing.T) {
	const name = "shop/\x1b[2J\n\u202eweb"
	s := Status{Problems: []model.ObjectProblem{
		{Object: name, Problem: model.Problem{Reason: "InvalidAddress", Message: "It is odd."}},
		{Object: "shop/web", Problem: model.Problem{Reason: "FrontendConflict", Message: "10.96.0.1:80/tcp belongs to " + name + "."}},
	}}
	var out strings.Builder
	if err := s.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\u202e") || strings.Contains(out.String(), "\n\u202eweb") {
		t.Errorf("a terminal would obey %q", out.String())
	}
	if !strings.Contains(out.String(), `"shop/\x1b[2J\n\u202eweb": InvalidAddress: It is odd.`) {
		t.Errorf("the object is not named in %q", out.String())
	}
}
