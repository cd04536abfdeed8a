package bugreport

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// machineOf returns a machine with these files. Every secret in them is called S3CRET.
func machineOf(t *testing.T, files map[string]string) Machine {
	t.Helper()
	m := Machine{Root: t.TempDir()}
	for name, text := range files {
		path := filepath.Join(m.Root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// partOf returns the output of one of the machine's parts.
func partOf(t *testing.T, m Machine, name string) (string, error) {
	t.Helper()
	for _, p := range m.Parts() {
		if p.Name == name {
			var out bytes.Buffer
			err := p.Collect(t.Context(), &out)
			return out.String(), err
		}
	}
	t.Fatalf("no part is called %s", name)
	return "", nil
}

// Secrets in the kernel's files and in those of other programs are not even read.
func TestMachine(t *testing.T) {
	m := machineOf(t, map[string]string{
		"proc/sys/net/ipv4/ip_forward": "1\n", "proc/sys/net/ipv4/tcp_fastopen": "3", "proc/sys/net/ipv4/tcp_fastopen_key": "S3CRET",
		"proc/sys/net/ipv6/conf/eth0/stable_secret": "S3CRET", "proc/sys/net/ipv6/conf/eth0/forwarding": "0", "proc/sys/net/ipv4/conf/eth0/rp_filter": "2",
		"proc/version": "Linux 6.12\n", "proc/self/environ": "PASSWORD=S3CRET", "proc/meminfo": "MemTotal: 1 kB\n",
		"proc/self/mountinfo": "30 1 0:26 / /sys/fs/bpf rw - bpf bpf rw\n31 1 0:27 / /mnt rw - cifs //host/x rw,password=S3CRET\n" +
			"32 1 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"etc/cni/net.d/10-x.conflist": `{"token":"S3CRET"}`, "etc/cni/net.d/kubeconfig": "S3CRET", "opt/cni/bin/bridge": "S3CRET",
	})
	for name, want := range map[string]string{
		"machine/sysctls.txt":  "net/ipv4/ip_forward = 1\nnet/ipv4/tcp_fastopen = 3\nnet/ipv4/conf/eth0/rp_filter = 2\nnet/ipv6/conf/eth0/forwarding = 0\n",
		"machine/mounts.txt":   "30 1 0:26 / /sys/fs/bpf rw - bpf bpf rw\n32 1 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"machine/networks.txt": "/etc/cni/net.d/10-x.conflist\n/etc/cni/net.d/kubeconfig\n/opt/cni/bin/bridge\n",
	} {
		if got, err := partOf(t, m, name); err != nil || got != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	got, err := partOf(t, m, "machine/proc.txt")
	if err != nil || !strings.HasPrefix(got, "== /proc/version\nLinux 6.12\n\n") || !strings.Contains(got, "== /proc/cmdline\n(there is none)\n") || strings.Contains(got, "S3CRET") {
		t.Errorf("%q, %v", got, err)
	}
}

// A file that is not a regular one does not block the reader.
func TestNoFile(t *testing.T) {
	m := machineOf(t, map[string]string{"proc/sys/net/ipv4/x": ""})
	for _, name := range []string{"proc/version", "proc/sys/net/ipv4/ip_forward"} {
		if err := unix.Mkfifo(filepath.Join(m.Root, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"machine/proc.txt", "machine/sysctls.txt"} {
		if got, err := partOf(t, m, name); err != nil || !strings.Contains(got, "is not a regular file)") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// Reading the kernel's log ends at its current end, and takes only matching lines.
func TestKernelLog(t *testing.T) {
	for record, want := range map[string]string{
		"6,1,12345678,-;bpf: a program\n SUBSYSTEM=net\n": "[12.345678] bpf: a program\n",
		"6,1,123,-;eth0: XDP is on\n":                     "[0.000123] eth0: XDP is on\n",
		"6,1,123,-;usb 1-1: S3CRET\n":                     "",
		"nonsense about bpf":                              "",
		"1,2;bpf":                                         "",
	} {
		m := machineOf(t, map[string]string{"dev/null": ""})
		path := filepath.Join(m.Root, "dev/kmsg")
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		log, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.WriteString(record); err != nil {
			t.Fatal(err)
		}
		if got, err := partOf(t, m, "machine/kernel-log.txt"); err != nil || got != want {
			t.Errorf("%q: %q, %v", record, got, err)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := partOf(t, machineOf(t, nil), "machine/kernel-log.txt"); err == nil {
		t.Error("read a log that does not exist")
	}
}

// The running machine provides all parts.
func TestRealMachine(t *testing.T) {
	rig.Root(t)
	for _, p := range (Machine{Root: "/"}).Parts() {
		var out bytes.Buffer
		err := p.Collect(t.Context(), &out)
		// A container may have no kernel log or lack the permission to read it.
		if log := p.Name == "machine/kernel-log.txt"; err != nil && (!log || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission)) {
			t.Errorf("%s: %v", p.Name, err)
		}
		if may := strings.HasSuffix(p.Name, "log.txt") || strings.HasSuffix(p.Name, "networks.txt") || strings.HasSuffix(p.Name, "neighbors.txt") ||
			strings.HasSuffix(p.Name, "mounts.txt"); out.Len() == 0 && !may {
			t.Errorf("%s is empty", p.Name)
		}
	}
}

func TestTree(t *testing.T) {
	m := machineOf(t, map[string]string{"b/c": "S3CRET", "a": ""})
	var out bytes.Buffer
	if err := Tree(m.Root)(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	want := "---------- ROOT/a\n---------- ROOT/b/c\nd--------- ROOT\nd--------- ROOT/b\n"
	if got := strings.ReplaceAll(out.String(), m.Root, "ROOT"); got != want {
		t.Errorf("%q", got)
	}
	if err := Tree(filepath.Join(m.Root, "none"))(t.Context(), &out); err == nil {
		t.Error("listed a directory that does not exist")
	}
}
