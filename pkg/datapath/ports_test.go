package datapath

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/model"
)

func TestSnatPorts(t *testing.T) {
	for _, test := range []struct {
		name, local, reserved string
		want, lacks           string
	}{
		{"a kernel as it comes", "32768\t60999", "", "1024-29999", ""},
		{"ports that are reserved", "32768\t60999", "8080,9000-9099", "9100-29999", ""},
		{"a wide range of the node's own", "15000\t65000", "", "1024-14999", ""},
		{"a low range", "1024\t20000", "", "32768-65535", ""},
		{"the widest range", "1024\t65535", "", "", "NodePorts (30000-32767), net.ipv4.ip_local_port_range (1024-65535)"},
		{"too few consecutive ports", "1024\t64900", "", "", "fewer than 1024 consecutive ports"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "net/ipv4")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for name, content := range map[string]string{"ip_local_port_range": test.local, "ip_local_reserved_ports": test.reserved} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			taken, err := ReadTaken(root, model.PortRange{First: 30000, Last: 32767})
			if err != nil {
				t.Fatal(err)
			}
			ports, err := taken.Largest()
			if test.lacks != "" {
				if err == nil || !strings.Contains(err.Error(), test.lacks) {
					t.Errorf("%s, %v", ports, err)
				}
				return
			}
			if err != nil || ports.String() != test.want || taken.Check(ports) != nil {
				t.Errorf("%s, %v, %v; want %s", ports, err, taken.Check(ports), test.want)
			}
		})
	}
}

func TestCheckPorts(t *testing.T) {
	taken := Taken{NodePorts: model.PortRange{First: 30000, Last: 32767}, Local: model.PortRange{First: 32768, Last: 60999}, Reserved: []model.PortRange{{First: 8080, Last: 8080}}}
	for text, want := range map[string]string{
		"61000-65535": "", "1024-8079": "", "60999-61000": "ip_local_port_range", "8000-8100": "ip_local_reserved_ports",
	} {
		ports, err := model.ParsePortRange(text)
		if err != nil {
			t.Fatal(err)
		}
		err = taken.Check(ports)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestNodePortAddrs(t *testing.T) {
	first := primary{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	for _, test := range []struct {
		text string
		want []string
	}{
		{"primary", []string{"192.0.2.1", "2001:db8::1"}},
		{"192.0.2.0/24", []string{"192.0.2.1", "192.0.2.9"}},
		{"10.0.0.0/8, 2001:db8::/32", []string{"10.1.2.3", "2001:db8::1"}},
		{"0.0.0.0/0", []string{"10.1.2.3", "192.0.2.1", "192.0.2.9"}},
	} {
		addrs, err := ParseNodePortAddrs(test.text)
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, addr := range []string{"10.1.2.3", "192.0.2.1", "192.0.2.9", "2001:db8::1"} {
			if addrs.has(netip.MustParseAddr(addr), first) {
				have = append(have, addr)
			}
		}
		if diff := cmp.Diff(test.want, have); diff != "" {
			t.Errorf("%s (-want +have):\n%s", test.text, diff)
		}
	}
	for _, text := range []string{"", "Primary", "192.0.2.1", "192.0.2.0/33"} {
		if _, err := ParseNodePortAddrs(text); err == nil {
			t.Errorf("ParseNodePortAddrs accepts %q", text)
		}
	}
}
