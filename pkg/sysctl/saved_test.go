package sysctl

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRestore checks that settings that somebody else changed after init stay, and settings saved
// during another boot of the kernel are ignored.
func TestRestore(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	write := func(name, value string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o700), os.WriteFile(at(name), []byte(value+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	const first, second, forward = "net/ipv6/conf/eth0/accept_ra", "net/ipv6/conf/eth1/accept_ra", "net/ipv6/conf/all/forwarding"
	set := func() {
		t.Helper()
		for name, value := range map[string]string{"kernel/random/boot_id": "one", forward: "0", first: "1", second: "1"} {
			write(name, value)
		}
		if _, err := EnableForwarding(root, dir); err != nil {
			t.Fatal(err)
		}
	}
	want := func(changed []string, values map[string]string) {
		t.Helper()
		got, err := Restore(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(changed, got); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
		for name, value := range values {
			if is, err := readSetting(at(name)); err != nil || is != value {
				t.Errorf("%s is %q, want %q: %v", name, is, value, err)
			}
		}
	}
	write("kernel/random/boot_id", "one")
	want(nil, nil) // nothing was saved
	set()
	write(second, "0")
	want([]string{"net.ipv6.conf.all.forwarding=0", "net.ipv6.conf.eth0.accept_ra=1"}, map[string]string{forward: "0", first: "1", second: "0"})
	want(nil, map[string]string{forward: "0"}) // once only
	set()
	write("kernel/random/boot_id", "two")
	want(nil, map[string]string{forward: "1", first: "2"})
	for _, noted := range []string{"{", `{"boot": "two", "files": {"../x": {"was": "1"}}}`, `{"boot": "two", "files": {"kernel/panic": {"was": "1"}}}`} {
		if err := os.WriteFile(filepath.Join(dir, savedFile), []byte(noted), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(root, dir); err == nil {
			t.Errorf("%s was accepted", noted)
		}
	}
}
