package sysctl

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// TestSetForRates checks that the settings of a node whose pods have rates come and go with the
// rates, and go with cleanup. Values that are larger already, or were changed by others since,
// stay.
func TestSetForRates(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	write := func(name, value string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	require := func(when, qdisc, backlog, conns, syns, priority string) {
		t.Helper()
		want := map[string]string{
			"net/core/default_qdisc": qdisc, "net/core/netdev_max_backlog": backlog, "net/core/somaxconn": conns, "net/ipv4/tcp_max_syn_backlog": syns,
			"net/ipv4/ip_forward_update_priority": priority,
		}
		have := map[string]string{}
		for name := range want {
			value, err := readSetting(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			have[name] = value
		}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%s (-want +have):\n%s", when, diff)
		}
	}
	set := func(wanted bool) []Change {
		t.Helper()
		all, err := ApplyForRates(root, dir, wanted)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	write("kernel/random/boot_id", "one")
	write("net/core/default_qdisc", "fq_codel")
	write("net/core/netdev_max_backlog", "5000")
	write("net/core/somaxconn", "128")
	write("net/ipv4/tcp_max_syn_backlog", "512")
	write("net/ipv4/ip_forward_update_priority", "1")
	set(false)
	require("without rates", "fq_codel", "5000", "128", "512", "1")
	for _, changed := range []bool{true, false} {
		want := []Change{
			{"net.core.default_qdisc=fq", changed}, {"net.core.netdev_max_backlog=5000", false}, {"net.core.somaxconn=4096", changed},
			{"net.ipv4.ip_forward_update_priority=0", changed}, {"net.ipv4.tcp_max_syn_backlog=4096", changed},
		}
		if diff := cmp.Diff(want, set(true)); diff != "" {
			t.Errorf("(-want +have):\n%s", diff)
		}
		require("with rates", "fq", "5000", "4096", "4096", "0")
	}
	write("net/core/somaxconn", "9000")
	set(false)
	require("without rates again", "fq_codel", "5000", "9000", "512", "1")
	write("net/core/somaxconn", "128")
	set(false)
	require("and once more", "fq_codel", "5000", "128", "512", "1")
	set(true)
	if _, err := Restore(root, dir); err != nil {
		t.Fatal(err)
	}
	require("cleaned", "fq_codel", "5000", "128", "512", "1")
}

// TestSlowStartStays checks that a new network namespace has the kernel's default for slow start,
// whatever its parent has. So init leaves the node's setting alone, as the page about pods says.
func TestSlowStartStays(t *testing.T) {
	rig.Root(t)
	const setting, name = "net/ipv4/tcp_slow_start_after_idle", "net.ipv4.tcp_slow_start_after_idle"
	parent := rig.NewNetns(t, "parent")
	if err := parent.SetSysctl(setting, "0"); err != nil {
		t.Fatal(err)
	}
	if err := parent.Do(func() error {
		child := exec.Command("cat", "/proc/sys/"+setting)
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		out, err := child.Output()
		if got := strings.TrimSpace(string(out)); err == nil && got != "1" {
			t.Errorf("in a namespace made by one with 0, %s is %s", name, got)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if forRates()[setting] != nil {
		t.Errorf("init sets %s", name)
	}
	page, err := os.ReadFile("../../docs/pod-network.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "It leaves `"+name+"` alone") {
		t.Errorf("the page does not say that init leaves %s alone", name)
	}
}
