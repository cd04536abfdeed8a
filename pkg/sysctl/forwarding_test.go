package sysctl

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSetForwarding(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	write := func(name, value string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("kernel/random/boot_id", "one")
	write("net/ipv4/ip_forward", "0")
	changes, err := EnableForwarding(root, dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Change{{"net.ipv4.ip_forward=1", true}, {"net.ipv6.conf.all.forwarding=1", false}}, changes); diff != "" {
		t.Errorf("without IPv6 (-want +have):\n%s", diff)
	}
	write("net/ipv6/conf/all/forwarding", "0")
	write("net/ipv6/conf/eth0/accept_ra", "1")
	write("net/ipv6/conf/eth1/accept_ra", "0")
	for _, changed := range []bool{true, false} {
		changes, err := EnableForwarding(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]Change{{"net.ipv4.ip_forward=1", false}, {"net.ipv6.conf.all.forwarding=1", changed}}, changes); diff != "" {
			t.Errorf("(-want +have):\n%s", diff)
		}
	}
	have := map[string]string{}
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/eth0/accept_ra", "net/ipv6/conf/eth1/accept_ra"} {
		content, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		have[name] = string(content[:1])
	}
	want := map[string]string{"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
		"net/ipv6/conf/eth0/accept_ra": "2", "net/ipv6/conf/eth1/accept_ra": "0"}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("settings (-want +have):\n%s", diff)
	}
}
