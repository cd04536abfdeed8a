package connections

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/netfilter"
	"fairlead.io/fairlead/test/rig"
)

// track makes netfilter track the connections of the namespace, and creates one.
func track() error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader("table inet t { chain out { type filter hook output priority 0; ct state established accept; }; }")
	if err := cmd.Run(); err != nil {
		return err
	}
	c, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		return err
	}
	_, err = c.Write([]byte("one"))
	return errors.Join(err, c.Close())
}

// TestNetfilterFlows checks that netfilter's record of a UDP flow is found, as long as it exists, by either
// of the flow's rows: the one for what the client sends, and the one for what the server answers.
func TestNetfilterFlows(t *testing.T) {
	rig.Root(t)
	if _, err := exec.LookPath("nft"); err != nil {
		rig.Lacking(t, "cluster", "there is no nft, of Debian's nftables")
	}
	at := netip.MustParseAddrPort
	for name, c := range map[string]netfilter.Connection{
		"IPv4": {Client: at("192.0.2.9:40000"), Dialed: at("192.0.2.1:30001"), Seen: at("192.0.2.1:11730"), Server: at("10.1.0.2:8080")},
		"IPv6": {Client: at("[2001:db8::9]:40000"), Dialed: at("[2001:db8::1]:30001"), Seen: at("[2001:db8::9]:40000"), Server: at("[fd00::2]:8080")},
	} {
		t.Run(name, func(t *testing.T) {
			c.Proto, c.Answered, c.Lasting = unix.IPPROTO_UDP, true, true
			if err := rig.NewNetns(t, "tracking").Do(func() error { return knownToNetfilter(t, c) }); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func knownToNetfilter(t *testing.T, c netfilter.Connection) error {
	k := &netfilterFlows{}
	defer func() { k.close() }()
	row := func(from, to netip.AddrPort) maps.Flow {
		return maps.Flow{
			Saddr: maps.AddrOf(from.Addr()), Daddr: maps.AddrOf(to.Addr()), Sport: maps.PortOf(from.Port()), Dport: maps.PortOf(to.Port()), Proto: c.Proto,
		}
	}
	want := maps.OriginOf(maps.SockOrigin{
		Vip: maps.AddrOf(c.Dialed.Addr()), VipPort: maps.PortOf(c.Dialed.Port()),
		Backend: maps.AddrOf(c.Server.Addr()), BackendPort: maps.PortOf(c.Server.Port()),
	}, model.UDP)
	check := func(when string, known bool) {
		t.Helper()
		for _, flow := range []maps.Flow{row(c.Client, c.Dialed), row(c.Seen, c.Server)} {
			origin, ok, err := k.ask(flow)
			if err != nil || ok != known || ok && origin != want {
				t.Errorf("%s, from %s: %+v, %t, %v; want %+v, %t", when, maps.FlowSource(flow), origin, ok, err, want, known)
			}
		}
	}
	check("where nothing is tracked", false)
	if err := track(); err != nil {
		return err
	}
	check("without a record", false)
	w, err := netfilter.NewWriter()
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Add(c); err != nil {
		return err
	}
	check("with a record", true)
	return nil
}
