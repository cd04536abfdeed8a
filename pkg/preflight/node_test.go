package preflight

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/devices"
)

var update = flag.Bool("update", false, "rewrite testdata")

// machine is a Node in a directory of files, which a test can change before the check.
type machine struct {
	Node
	files map[string]string // by path; a text that begins with "-> " makes a link
}

// sound returns a machine without problems. It has two devices with two queues each.
func sound() *machine {
	m := &machine{files: map[string]string{
		"proc/sys/kernel/osrelease": "6.12.1", "proc/sys/net/core/bpf_jit_enable": "1", "proc/sys/net/core/bpf_jit_harden": "0",
		"proc/filesystems": "nodev\tbpf\nnodev\tcgroup2\n\text4\n", "proc/meminfo": "MemFree: 1 kB\nMemTotal:       16777216 kB\n",
		"proc/self/cgroup": "0::/kubepods/pod1\n", "sys/fs/cgroup/kubepods/pod1/memory.max": "max",
		"proc/sys/net/ipv4/ip_forward": "1", "proc/sys/net/ipv6/conf/all/forwarding": "1", "proc/sys/net/ipv4/conf/all/rp_filter": "0",
		"proc/1/comm": "systemd\n", "proc/17/comm": "sshd\n", "proc/version": "Linux version 6.12.1 (x) #1 SMP PREEMPT_DYNAMIC today",
		"sys/kernel/debug/sched/preempt": "none voluntary full (lazy)\n", "proc/cmdline": "quiet",
		"proc/sys/net/netfilter/nf_conntrack_count":          "2",
		"proc/sys/net/ipv4/tcp_available_congestion_control": "reno cubic bbr", "proc/sys/net/ipv4/tcp_congestion_control": "cubic",
		"etc/tuned/active_profile": "network-throughput\n", "etc/cni/net.d/05-fairlead.conflist": `{"plugins":[{"type":"fairlead-cni"}]}`,
		"sys/class/net/lo/type": "1",
	}}
	for i := range 2 {
		device, other := fmt.Sprintf("sys/class/net/eth%d/", i), fmt.Sprintf("sys/devices/pci%d/", i)
		m.files[device+"device"] = "-> ../../../devices/pci" + fmt.Sprint(i) + "/virtio"
		m.files[other+"virtio/driver"] = "-> ../../../bus/virtio/drivers/virtio_net"
		m.files[device+"queues/rx-0/x"], m.files[device+"queues/rx-1/x"], m.files[device+"queues/tx-0/x"] = "", "", ""
		for q := range 2 {
			irq := fmt.Sprint(30 + 10*i + q)
			m.files[other+"msi_irqs/"+irq] = "msix"
			m.files["proc/irq/"+irq+"/effective_affinity_list"] = fmt.Sprint(q)
		}
		m.files[fmt.Sprintf("sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor", i)] = "performance\n"
	}
	m.files["sys/devices/system/cpu/cpufreq/boost"] = "1"
	m.Node = Node{
		Options: Options{XDP: devices.Auto, PodNetwork: "main", HostRouting: "bpf", BigTCP: true, ConfDir: "/etc/cni/net.d", ConfName: "05-fairlead.conflist",
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")}},
		Kernel: func() ([]string, error) { return nil, nil },
		Cgroup: func() (string, error) { return "/sys/fs/cgroup", nil },
		BPFFS:  func() (string, error) { return "/sys/fs/bpf", nil },
		Memory: func() (Memory, error) { return Memory{24 << 20, 88 << 20}, nil },
		Chains: func() ([]Chain, error) {
			return []Chain{{"mangle", "KUBE-KUBELET-CANARY", false}, {"mangle", "KUBE-IPTABLES-HINT", false}, {"filter", "KUBE-FIREWALL", false}, {"filter", "INPUT", false}}, nil
		},
		Devices: func() ([]devices.Device, error) {
			return []devices.Device{
				{Index: 2, Name: "eth0", Kind: "device", MTU: 9000, Why: "it has the default route"},
				{Index: 3, Name: "eth1", Kind: "device", MTU: 9000, Why: "it has an address"},
			}, nil
		},
		XDP:    func(int) (bool, error) { return true, nil },
		BigTCP: func() (LargePackets, error) { return LargePackets{V4: 196608, V6: 196608}, nil },
		Own:    []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Policies: new(int),
		Tracked: tracked([2]string{"192.0.2.1", "10.1.0.2"}, [2]string{"198.51.100.1", "192.0.2.1"}),
	}
	return m
}

// tracked lists connections, each given by its two ends.
func tracked(ends ...[2]string) func(visit func(client, server netip.Addr)) error {
	return func(visit func(client, server netip.Addr)) error {
		for _, e := range ends {
			visit(netip.MustParseAddr(e[0]), netip.MustParseAddr(e[1]))
		}
		return nil
	}
}

// check creates the machine's files and checks it.
func (m *machine) check(t *testing.T) *Report {
	t.Helper()
	return m.checkIn(t, &tree{root: t.TempDir()})
}

// checkIn is check in a tree with the files of another machine, most of which are the same.
func (m *machine) checkIn(t *testing.T, files *tree) *Report {
	t.Helper()
	if err := files.become(m.files); err != nil {
		t.Fatal(err)
	}
	m.Root = Root(files.root)
	return m.Check()
}

// tree is a directory and the files in it.
type tree struct {
	root string
	has  map[string]string
}

// become makes the directory contain exactly these files.
func (r *tree) become(files map[string]string) error {
	for name, text := range r.has {
		if now, ok := files[name]; ok && now == text {
			continue
		}
		path := filepath.Join(r.root, name)
		if err := os.Remove(path); err != nil {
			return err
		}
		// What is a directory now may become a file or disappear.
		for path = filepath.Dir(path); path != r.root && os.Remove(path) == nil; path = filepath.Dir(path) {
		}
	}
	for name, text := range files {
		if was, ok := r.has[name]; ok && was == text {
			continue
		}
		path := filepath.Join(r.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		var err error
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(to, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			return err
		}
	}
	r.has = maps.Clone(files)
	return nil
}

func (m *machine) link(change func(*devices.Device)) {
	found, err := m.Devices()
	change(&found[0])
	m.Devices = func() ([]devices.Device, error) { return found, err }
}

func golden(t *testing.T, name, have string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), have); diff != "" {
		t.Errorf("rewrite %s with -update if this is right:\n%s", path, diff)
	}
}

func TestSound(t *testing.T) {
	report := sound().check(t)
	for _, l := range report.Lines {
		if l.State != OK || l.Cure != "" || l.Found == "" {
			t.Errorf("%+v", l)
		}
	}
	if report.Fails+report.Warns+report.Unknown != 0 || len(report.Failed()) != 0 {
		t.Errorf("%+v", report)
	}
	var text bytes.Buffer
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	golden(t, "sound.txt", text.String())
}

// The checks skip everything that an agent with AccelerateOnly leaves to others.
func TestAccelerateOnly(t *testing.T) {
	m := sound()
	m.Options = Options{AccelerateOnly: true}
	m.Devices, m.Cgroup = nil, nil
	m.Sockmap = func() (string, []string) { return "", nil }
	m.files["proc/99/comm"] = "kube-proxy\n"
	var checks []string
	for _, l := range m.check(t).Lines {
		if checks = append(checks, l.Check); l.State != OK {
			t.Errorf("%+v", l)
		}
	}
	if want := []string{"kernel", "jit", "bpffs", "acceleration"}; !slices.Equal(checks, want) {
		t.Errorf("the checks are %q, want %q", checks, want)
	}
}

// A machine with many problems.
func TestUnsound(t *testing.T) {
	m := sound()
	m.Kernel = func() ([]string, error) { return nil, errors.New("the kernel is too old") }
	m.BPFFS = func() (string, error) { return "", errors.New("none at /sys/fs/bpf") }
	m.files["proc/sys/net/core/bpf_jit_enable"], m.files["proc/sys/net/ipv4/ip_forward"] = "0", "0"
	m.files["sys/class/net/kube-ipvs0/type"], m.files["sys/class/net/cni0/type"] = "1", "1"
	m.files["proc/18/comm"], m.files["proc/19/comm"] = "irqbalance\n", "kube-proxy\n"
	m.files["etc/cni/net.d/01-bridge.conf"] = `{"type":"bridge"}`
	m.Tracked = tracked([2]string{"192.0.2.1", "10.1.0.2"}, [2]string{"198.51.100.1", "192.0.2.1"}, [2]string{"10.1.0.3", "203.0.113.1"})
	m.Policies = new(3)
	m.Chains = func() ([]Chain, error) { return nil, unix.EPERM }
	report := m.check(t)
	var text bytes.Buffer
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	golden(t, "unsound.txt", text.String())
	encoded, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "unsound.json", string(encoded)+"\n")
	if diff := cmp.Diff([]string{"kernel", "cni"}, report.Failed()); diff != "" {
		t.Errorf("failed (-want +got):\n%s", diff)
	}
}

// Names that others choose are made safe for terminals, and a file of any length is read only up to
// a limit.
func TestHostile(t *testing.T) {
	m := sound()
	m.files["sys/class/net/cali\x1b[2J\u202e/type"] = "1"
	m.files["etc/cni/net.d/00-\x1b]0;x.conflist"] = `{"type":"` + strings.Repeat("a", 2000) + "\u009b31m" + `"}`
	m.files["proc/sys/kernel/osrelease"] = strings.Repeat("6", 1<<20)
	report := m.check(t)
	for _, l := range report.Lines {
		if text := l.Found + l.Cure; strings.ContainsAny(text, "\x1b\x00\u009b\u202e\n") || len(text) > 2*maxText+500 {
			t.Errorf("%s: %q", l.Check, text)
		}
	}
	if i := slices.IndexFunc(report.Lines, func(l Line) bool { return l.Check == "other networks" }); !strings.Contains(report.Lines[i].Found, "cali?[2J") {
		t.Errorf("the line does not name the device: %+v", report.Lines[i])
	}
}

// read refuses anything that is not a regular file, including what would block the reader.
func TestOpen(t *testing.T) {
	n := &Node{Root: Root(t.TempDir())}
	if err := unix.Mkfifo(n.path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pipe", ".", "none"} {
		if text, err := n.read(name); err == nil {
			t.Errorf("read of %s returns %q", name, text)
		}
	}
	if _, err := n.read("none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}
