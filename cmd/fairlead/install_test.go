package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/agent/life"
	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/cni/install"
	"fairlead.io/fairlead/test/rig"
)

// TestInstallation checks that the plugin is installed, that the agent writes the configuration
// once it is ready, that both stay when the agent ends, and that cleanup removes them and leaves
// the device of a running pod.
func TestInstallation(t *testing.T) {
	n := newNode(t)
	source, plugins, networks := t.TempDir(), t.TempDir(), t.TempDir()
	build := exec.Command("go", "build", "-o", source+"/", "fairlead.io/fairlead/cmd/fairlead-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	plugin, configuration := filepath.Join(plugins, install.PluginName), filepath.Join(networks, "05-fairlead.conflist")
	want := func(path string, there bool) {
		t.Helper()
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) == there {
			t.Fatalf("%s: %v", path, err)
		}
	}

	from := []string{"install", "--from=" + filepath.Join(source, install.PluginName)}
	for _, text := range []string{"is written", "is there already"} {
		if out := n.run(append(from, "--cni-bin-dir="+plugins)...); out != plugin+" "+text+"\n" {
			t.Errorf("install says %q", out)
		}
	}
	version := exec.Command(plugin)
	version.Env = []string{"CNI_COMMAND=VERSION", "CNI_PATH=/"}
	if out, err := version.CombinedOutput(); err != nil || !strings.Contains(string(out), "1.1.0") {
		t.Errorf("the plugin: %s, %v", out, err)
	}
	want(configuration, false)
	for wrong, says := range map[string]string{"--cni-bin-dir=" + filepath.Join(plugins, "none"): "create directory", "--cni-bin-dir=relative": "not an absolute path"} {
		if got := fairlead(t, append(from, wrong)...); got.code == exitOK || !strings.Contains(got.stderr, says) {
			t.Errorf("%s: %+v", wrong, got)
		}
	}

	if err := n.ns.SetSysctl("net/ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	start := func(options ...string) {
		n.agent = rig.NewChild(t, nil, n.ns, "fairlead", append(append([]string{
			"agent", "--source=" + n.manifests, "--cgroup-root=" + n.cgroup.Path(), "--node-name=node-a", "--log-level=warn", "--pod-network=main",
			"--cni-conf-dir=" + networks, "--ready-address=" + readyAddress,
		}, options...), n.flags...)...)
	}
	start()
	n.waitFor("only a podCIDR is missing", func() bool { code, _ := n.get(readyAddress, "/readyz"); return code == 200 })
	time.Sleep(3 * life.AnnounceEvery) // it would have been written by then
	want(configuration, false)
	n.agent.Kill()
	start("--pod-cidrs=10.1.0.0/24")
	n.waitFor("the configuration is written", func() bool { _, err := os.Stat(configuration); return err == nil })
	stateDir, _ := strings.CutPrefix(n.flags[1], "--state-dir=")
	// This client does not wait.
	client := &cni.Client{Path: filepath.Join(stateDir, cni.SocketName)}
	request := &cni.Request{
		Verb: cni.Allocate, Attachment: cni.Attachment{Network: "fairlead", Container: "c", IfName: "eth0"}, Pod: cni.Pod{Namespace: "shop", Name: "web-1"},
	}
	if _, err := client.Ask(request, nil); err != nil {
		t.Fatalf("once the configuration is there: %v", err)
	}
	device := request.Attachment.Device()
	rig.Veth(t, n.ns, device, rig.NewNetns(t, "pod"), "eth0")
	before, err := os.Stat(configuration)
	if err != nil {
		t.Fatal(err)
	}
	n.agent.Kill()
	want(configuration, true)
	start("--pod-cidrs=10.1.0.0/24")
	n.run("status", "--wait", "--wait-duration=30s")
	if after, err := os.Stat(configuration); err != nil || !os.SameFile(before, after) {
		t.Errorf("a restart wrote the configuration again: %v", err)
	}
	n.agent.Kill()

	n.run("cleanup")
	want(configuration, true) // with another state directory, it stays unless it is named
	want(plugin, true)
	out := rig.Child(t, nil, n.ns, "fairlead", append([]string{"cleanup", "--cni-conf-dir=" + networks, "--cni-bin-dir=" + plugins}, n.flags...)...)
	for _, text := range []string{"removed " + configuration + "\nremoved " + plugin + "\n", "left device " + device + " of pod ", "1 pods keep"} {
		if !strings.Contains(out, text) {
			t.Errorf("cleanup does not say %q:\n%s", text, out)
		}
	}
	want(configuration, false)
	want(plugin, false)
	want(filepath.Join(stateDir, "ipam"), false)
	want(filepath.Join(stateDir, "pods"), false)
	if err := n.ns.Do(func() error { _, err := os.Stat("/proc/sys/net/ipv4/conf/" + device); return err }); err != nil {
		t.Errorf("the pod's device: %v", err)
	}
}

// TestConfigurationOfOthers checks that an agent that must not write the configuration refuses the
// option before it does anything.
func TestConfigurationOfOthers(t *testing.T) {
	for _, mode := range []string{"off", "chained"} {
		for _, flag := range []string{"--cni-conf-dir=" + t.TempDir(), "--l7-proxies=envoy=15001", "--pod-device=netkit", "--big-tcp=true"} {
			args := append([]string{"agent", "--source=" + t.TempDir(), "--node-name=a", "--pod-network=" + mode, flag}, nowhere(t)...)
			if got := fairlead(t, args...); got.code != exitUsage || !strings.Contains(got.stderr, "needs --pod-network=main") {
				t.Errorf("%s, %s: %+v", mode, flag, got)
			}
		}
	}
	// Pods of another plugin may have rates. But BBR must be tested on the way that packets take,
	// which only that plugin knows.
	for _, whose := range []string{"true", "annotated"} {
		args := append([]string{"agent", "--source=" + t.TempDir(), "--node-name=a", "--pod-network=chained", "--bandwidth=true", "--bbr=" + whose}, nowhere(t)...)
		want := "--bbr=" + whose + " needs --pod-network=main, and it is chained: another plugin decides which way pods' packets take"
		if got := fairlead(t, args...); got.code != exitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("%+v, want %s", got, want)
		}
	}
	for _, name := range []string{"fairlead", ".x.conflist", "a/b.conflist", "x.conf"} {
		if got := fairlead(t, "install", "--cni-conf-name="+name); got.code != exitUsage || !strings.Contains(got.stderr, "not the name of a file that ends in .conflist") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
