package routes

import (
	"net"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// said is one message about a neighbor, and its meaning.
type said struct {
	addr  string
	mac   string
	state int
	gone  bool
	means meaning
}

func TestNeighbors(t *testing.T) {
	const a, b, one, two = "192.0.2.1", "2001:db8::1", "02:00:00:00:00:01", "02:00:00:00:00:02"
	for name, story := range map[string][]said{
		"confirmed again and again": {
			{a, one, unix.NUD_REACHABLE, false, changed}, {a, one, unix.NUD_STALE, false, flapped},
			{a, one, unix.NUD_DELAY, false, flapped}, {a, one, unix.NUD_PROBE, false, flapped},
			{a, one, unix.NUD_REACHABLE, false, flapped}, {a, one, unix.NUD_PERMANENT, false, flapped},
		},
		"a new MAC address": {
			{a, one, unix.NUD_REACHABLE, false, changed}, {a, two, unix.NUD_STALE, false, changed}, {a, two, unix.NUD_REACHABLE, false, flapped},
		},
		"stops answering": {
			{b, one, unix.NUD_REACHABLE, false, changed}, {b, one, unix.NUD_FAILED, false, changed},
			{b, one, unix.NUD_FAILED, false, flapped}, {b, one, unix.NUD_REACHABLE, false, changed},
		},
		"never answers":               {{b, "", unix.NUD_INCOMPLETE, false, flapped}, {b, "", unix.NUD_FAILED, false, flapped}, {b, "", unix.NUD_FAILED, true, flapped}},
		"forgotten":                   {{a, one, unix.NUD_STALE, false, changed}, {a, one, unix.NUD_STALE, true, changed}, {a, one, unix.NUD_STALE, false, changed}},
		"two neighbors":               {{a, one, unix.NUD_STALE, false, changed}, {b, one, unix.NUD_STALE, false, changed}, {a, one, unix.NUD_REACHABLE, false, flapped}},
		"more than there is room for": {{a, one, unix.NUD_STALE, false, changed}, {b, one, unix.NUD_STALE, false, changed}, {"192.0.2.3", one, unix.NUD_STALE, false, changed}, {"192.0.2.3", one, unix.NUD_STALE, false, changed}, {"192.0.2.3", one, unix.NUD_FAILED, false, changed}, {a, one, unix.NUD_REACHABLE, false, flapped}},
		"no address":                  {{"", one, unix.NUD_REACHABLE, false, changed}},
	} {
		t.Run(name, func(t *testing.T) {
			known := &neighbors{list: map[neighbor]string{}, room: 2}
			for i, s := range story {
				family := unix.AF_INET6
				if net.ParseIP(s.addr).To4() != nil {
					family = unix.AF_INET
				}
				mac, err := net.ParseMAC(s.mac)
				if err != nil && s.mac != "" {
					t.Fatal(err)
				}
				entry := &netlink.Neigh{LinkIndex: 7, Family: family, State: s.state, IP: net.ParseIP(s.addr), HardwareAddr: mac}
				if means := known.learn(entry, s.gone); means != s.means {
					t.Errorf("%d: %+v means %d, want %d", i, s, means, s.means)
				}
				if len(known.list) > known.room {
					t.Errorf("%d neighbors are known, want at most %d", len(known.list), known.room)
				}
			}
		})
	}
}

func TestMessages(t *testing.T) {
	for _, tt := range []struct {
		name  string
		kind  uint16
		data  []byte
		means meaning
	}{
		{"a route", unix.RTM_NEWROUTE, nil, changed},
		{"a removed rule", unix.RTM_DELRULE, nil, changed},
		{"a next hop", unix.RTM_NEWNEXTHOP, nil, changed},
		{"a setting", unix.RTM_NEWNETCONF, nil, changed},
		{"an unknown message", 999, nil, changed},
		{"nothing", unix.NLMSG_NOOP, nil, nothing},
		{"a truncated neighbor", unix.RTM_NEWNEIGH, []byte{2}, changed},
		{"a neighbor with a truncated attribute", unix.RTM_NEWNEIGH, append(make([]byte, unix.SizeofNdMsg), 255, 255, 1, 0), changed},
		{"a bridge's entry", unix.RTM_NEWNEIGH, append([]byte{unix.AF_BRIDGE}, make([]byte, unix.SizeofNdMsg-1)...), nothing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			known := &neighbors{list: map[neighbor]string{}, room: 2}
			m := syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: tt.kind}, Data: tt.data}
			if means := known.hear(&m); means != tt.means {
				t.Errorf("means %d, want %d", means, tt.means)
			}
		})
	}
}
