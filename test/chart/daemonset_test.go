package chart

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/maps"
)

func daemonSet(t testing.TB, given ...values) *appsv1.DaemonSet {
	t.Helper()
	return the[*appsv1.DaemonSet](t, render(t, given...))
}

func named(t testing.TB, containers []corev1.Container, name string) corev1.Container {
	t.Helper()
	for _, c := range containers {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no container %s", name)
	return corev1.Container{}
}

// The agent has three capabilities and no other privilege, whatever else the user asks for.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	yes, no, root := true, false, int64(0)
	confined := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	unlabeled := &corev1.SELinuxOptions{Type: "spc_t", Level: "s0"}
	want := map[string]*corev1.SecurityContext{
		"init": {Privileged: &yes},
		"install": {
			RunAsUser: &root, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, SeccompProfile: confined,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, SELinuxOptions: unlabeled,
		},
		"agent": {
			RunAsUser: &root, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, SeccompProfile: confined,
			AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}, SELinuxOptions: unlabeled,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"BPF", "NET_ADMIN", "PERFMON"}},
		},
	}
	for network, names := range map[string][]string{"main": {"init", "install", "agent"}, "chained": {"init", "install", "agent"}, "off": {"init", "agent"}} {
		pod := daemonSet(t, at("podNetwork", network)).Spec.Template.Spec
		if pod.HostPID || pod.HostIPC || !pod.HostNetwork || pod.SecurityContext != nil {
			t.Errorf("podNetwork %s: host PID %v, host IPC %v, host network %v, %+v", network, pod.HostPID, pod.HostIPC, pod.HostNetwork, pod.SecurityContext)
		}
		have := map[string]*corev1.SecurityContext{}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			have[c.Name] = c.SecurityContext
		}
		expected := map[string]*corev1.SecurityContext{}
		for _, name := range names {
			expected[name] = want[name]
		}
		if diff := cmp.Diff(expected, have); diff != "" {
			t.Errorf("podNetwork %s (-want +have):\n%s", network, diff)
		}
	}
}

// mount is a directory of the node that a container sees.
type mount struct{ path, of, how string }

func mounts(pod corev1.PodSpec, c corev1.Container) (all []mount) {
	for _, m := range c.VolumeMounts {
		for _, v := range pod.Volumes {
			if v.Name != m.Name {
				continue
			}
			of := "ConfigMap"
			switch {
			case v.HostPath != nil:
				of = v.HostPath.Path
			case v.ConfigMap != nil:
				of += " " + v.ConfigMap.Name
			}
			how := "rw"
			if m.ReadOnly {
				how = "ro"
			}
			if m.MountPropagation != nil {
				how += " " + string(*m.MountPropagation)
			}
			all = append(all, mount{m.MountPath, of, how})
		}
	}
	return all
}

func TestMounts(t *testing.T) {
	t.Parallel()
	pod := daemonSet(t, at("cni.binPath", "/usr/lib/cni"), at("cni.confPath", "/etc/rancher/net.d"), at("cni.cachePath", "/var/c"), at("bpf.root", "/run/bpf"),
		at("ipMasqAgent.enabled", true)).Spec.Template.Spec
	want := map[string][]mount{
		"init": {
			{"/run/bpf", "/run/bpf", "rw Bidirectional"}, {"/sys/fs/cgroup", "/sys/fs/cgroup", "ro"},
			{"/run/fairlead-cgroup2", "/run/fairlead-cgroup2", "rw Bidirectional"}, {"/run/fairlead", "/run/fairlead", "rw"},
		},
		"install": {{"/host/opt/cni/bin", "/usr/lib/cni", "rw"}},
		"agent": {
			{"/etc/fairlead", "ConfigMap fairlead", "ro"}, {"/run/bpf", "/run/bpf", "rw HostToContainer"}, {"/sys/fs/cgroup", "/sys/fs/cgroup", "ro"},
			{"/run/fairlead-cgroup2", "/run/fairlead-cgroup2", "ro HostToContainer"}, {"/run/fairlead", "/run/fairlead", "rw"},
			{"/var/c", "/var/c", "ro"}, {"/run/netns", "/run/netns", "ro HostToContainer"},
			{"/etc/fairlead-masquerade", "ConfigMap ip-masq-agent", "ro"}, {"/host/etc/cni/net.d", "/etc/rancher/net.d", "rw"},
		},
	}
	have := map[string][]mount{}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		have[c.Name] = mounts(pod, c)
		if len(have[c.Name]) != len(c.VolumeMounts) {
			t.Errorf("container %s mounts a volume that the pod does not have", c.Name)
		}
	}
	if diff := cmp.Diff(want, have, cmp.AllowUnexported(mount{})); diff != "" {
		t.Errorf("mounts (-want +have):\n%s", diff)
	}
}

// The commands have the flags that the chart passes to them.
func TestArguments(t *testing.T) {
	t.Parallel()
	pod := daemonSet(t, at("devices", []string{"eth0", "eth1"}), at("cgroup.hostRoot", "/sys/fs/cgroup/x"), at("bandwidthManager.enabled", true),
		at("bandwidthManager.bbr", "annotated"), at("bpf.datapathMode", "netkit"),
		at("podNetwork", "main"), at("extraArgs", []string{"--log-level=debug"})).Spec.Template.Spec
	want := map[string][]string{
		"init": {"init", "--bpffs=/sys/fs/bpf", "--cgroup-root=/sys/fs/cgroup/x", "--devices=eth0,eth1", "--bandwidth=true",
			"--bbr=annotated", "--host-routing=bpf", "--pod-device=netkit", "--routing=vxlan"},
		"install": {"install", "--cni-bin-dir=/host/opt/cni/bin"},
		"agent":   {"agent", "--config-dir=/etc/fairlead", "--node-name=$(NODE_NAME)", "--log-level=debug"},
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if diff := cmp.Diff(want[c.Name], c.Args); diff != "" {
			t.Errorf("%s (-want +have):\n%s", c.Name, diff)
		}
		checkFlags(t, c.Args)
	}
}

// checkFlags checks that a command has the flags in args.
func checkFlags(t testing.TB, args []string) {
	t.Helper()
	reference, err := os.ReadFile("../../docs/cli/fairlead_" + args[0] + ".md")
	if err != nil {
		t.Fatal(err)
	}
	for _, arg := range args[1:] {
		flag, _, _ := strings.Cut(arg, "=")
		if !regexp.MustCompile(`(?m)^ +` + flag + ` `).Match(reference) {
			t.Errorf("fairlead %s has no %s", args[0], flag)
		}
	}
}

func TestServerOfTheCluster(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		host, sayHost string
		port          any
		sayPort       string
	}{
		{"192.0.2.1", "192.0.2.1", nil, "6443"}, {"2001:db8::1", "2001:db8::1", 443, "443"}, {"fd00:1:2:3:4:5:6:7", "fd00:1:2:3:4:5:6:7", "8443", "8443"},
		{"[2001:db8::1]", "2001:db8::1", 6443, "6443"}, {"api.example.com", "api.example.com", 6443, "6443"},
	} {
		given := []values{at("k8sServiceHost", tt.host)}
		if tt.port != nil {
			given = append(given, at("k8sServicePort", tt.port))
		}
		have := map[string]string{}
		for _, env := range named(t, daemonSet(t, given...).Spec.Template.Spec.Containers, "agent").Env {
			have[env.Name] = env.Value
		}
		want := map[string]string{"NODE_NAME": "", "KUBERNETES_SERVICE_HOST": tt.sayHost, "KUBERNETES_SERVICE_PORT": tt.sayPort}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%s (-want +have):\n%s", tt.host, diff)
		}
	}
}

func TestLife(t *testing.T) {
	t.Parallel()
	set := daemonSet(t, at("ready.address", "[::1]:1234"))
	pod := set.Spec.Template.Spec
	agent := named(t, pod.Containers, "agent")
	for name, tt := range map[string]struct {
		probe *corev1.Probe
		path  string
	}{"startup": {agent.StartupProbe, "/livez"}, "readiness": {agent.ReadinessProbe, "/readyz"}, "liveness": {agent.LivenessProbe, "/livez"}} {
		if tt.probe == nil || tt.probe.HTTPGet == nil {
			t.Errorf("%s: no probe", name)
			continue
		}
		if get := tt.probe.HTTPGet; get.Host != "::1" || get.Port.IntValue() != 1234 || get.Path != tt.path {
			t.Errorf("%s: %+v", name, get)
		}
	}
	// Starting may take minutes, where the API server does; once started, the agent may not hang
	// for more than one.
	if s := agent.StartupProbe; s.PeriodSeconds*s.FailureThreshold < 180 {
		t.Errorf("startup may take %d s", s.PeriodSeconds*s.FailureThreshold)
	}
	if pod.PriorityClassName != "system-node-critical" || len(pod.Tolerations) != 1 || pod.Tolerations[0] != (corev1.Toleration{Operator: corev1.TolerationOpExists}) {
		t.Errorf("priority %q, tolerations %+v", pod.PriorityClassName, pod.Tolerations)
	}
	if set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue() != 1 {
		t.Errorf("update: %+v", set.Spec.UpdateStrategy)
	}
	if !cmp.Equal(set.Spec.Selector.MatchLabels, set.Spec.Template.Labels) {
		t.Errorf("selector %v, labels %v", set.Spec.Selector.MatchLabels, set.Spec.Template.Labels)
	}
}

// A changed option replaces the pods, and nothing else does.
func TestChecksum(t *testing.T) {
	t.Parallel()
	sum := func(given ...values) string {
		return daemonSet(t, given...).Spec.Template.Annotations["checksum/config"]
	}
	plain := sum()
	if other := sum(at("log.level", "debug")); plain == "" || other == plain {
		t.Errorf("another option: %q after %q", other, plain)
	}
	if other := sum(at("podAnnotations.a", "b"), at("rbac.create", false)); other != plain {
		t.Errorf("no other option: %q after %q", other, plain)
	}
}

func TestWhatUsersAdd(t *testing.T) {
	t.Parallel()
	set := daemonSet(t,
		at("image", values{"repository": "example.com/f", "tag": "v1", "pullPolicy": "Always"}), at("imagePullSecrets", []any{values{"name": "s"}}),
		at("resources", values{"requests": values{"memory": "1Gi", "cpu": "1"}, "limits": values{"memory": "2Gi"}}),
		at("nodeSelector.a", "b"), at("tolerations", []any{values{"key": "k", "operator": "Exists"}}), at("priorityClassName", "p"),
		at("affinity", values{"nodeAffinity": values{"requiredDuringSchedulingIgnoredDuringExecution": values{"nodeSelectorTerms": []any{values{"matchExpressions": []any{
			values{"key": "x", "operator": "Exists"},
		}}}}}}),
		at("updateStrategy", values{"type": "OnDelete", "rollingUpdate": nil}), at("podAnnotations.c", "d"), at("podLabels.e", "f"),
		at("extraEnv", []any{values{"name": "GOGC", "value": "50"}}), at("extraVolumes", []any{values{"name": "v", "emptyDir": values{}}}),
		at("extraVolumeMounts", []any{values{"name": "v", "mountPath": "/v"}}), at("serviceAccount", values{"create": false, "name": "mine"}), at("fullnameOverride", "other"))
	pod := set.Spec.Template.Spec
	agent := named(t, pod.Containers, "agent")
	term := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0]
	have := []string{
		set.Name, agent.Image, string(agent.ImagePullPolicy), pod.InitContainers[0].Image, pod.InitContainers[1].Image, pod.ImagePullSecrets[0].Name, agent.Resources.Requests.Memory().String(),
		agent.Resources.Limits.Memory().String(), agent.Resources.Limits.Cpu().String(), pod.NodeSelector["a"], pod.Tolerations[0].Key, pod.PriorityClassName, term.Key,
		string(set.Spec.UpdateStrategy.Type), set.Spec.Template.Annotations["c"], set.Spec.Template.Labels["e"], agent.Env[len(agent.Env)-1].Name,
		pod.Volumes[len(pod.Volumes)-1].Name, agent.VolumeMounts[len(agent.VolumeMounts)-1].MountPath, pod.ServiceAccountName,
	}
	want := []string{
		"other", "example.com/f:v1", "Always", "example.com/f:v1", "example.com/f:v1", "s", "1Gi", "2Gi", "0", "b", "k", "p", "x", "OnDelete", "d", "f", "GOGC", "v", "/v", "mine",
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("(-want +have):\n%s", diff)
	}
	digest := "sha256:" + strings.Repeat("0a", 32)
	if image := named(t, daemonSet(t, at("image.digest", digest), at("image.tag", "v1")).Spec.Template.Spec.Containers, "agent").Image; image != "fairlead.io/fairlead@"+digest {
		t.Errorf("image with a digest: %s", image)
	}
}

// pastTCP returns the memory that connections past TCP take when their maps are full: their rows,
// and what the kernel keeps for their sockets.
func pastTCP(t *testing.T) int64 {
	t.Helper()
	const each = 64 // overhead of a row or socket in bytes
	spec, err := bpf.LoadSockmap()
	if err != nil {
		t.Fatal(err)
	}
	m := spec.Maps
	need := m["socks"].MaxEntries * (m["socks"].KeySize + m["socks"].ValueSize + each)
	for _, name := range []string{"pairs", "halves"} {
		need += m[name].MaxEntries * (m[name].KeySize + m[name].ValueSize + each)
	}
	return int64(need + (2*m["pairs"].MaxEntries+m["halves"].MaxEntries)*(m["ends"].ValueSize+each))
}

// Names, and what accounts of a cloud are tied to the agents' by.
func TestNames(t *testing.T) {
	t.Parallel()
	all := render(t, at("nameOverride", "net"), at("serviceAccount.annotations", values{"example.com/role": "agent"}))
	set, account := the[*appsv1.DaemonSet](t, all), the[*corev1.ServiceAccount](t, ofAgent(all))
	if set.Name != "fairlead-net" || set.Labels["app.kubernetes.io/name"] != "net" || set.Spec.Selector.MatchLabels["app.kubernetes.io/name"] != "net" {
		t.Errorf("DaemonSet %s, labels %v, selector %v", set.Name, set.Labels, set.Spec.Selector)
	}
	if account.Name != "fairlead-net" || set.Spec.Template.Spec.ServiceAccountName != account.Name || !cmp.Equal(account.Annotations, map[string]string{"example.com/role": "agent"}) {
		t.Errorf("ServiceAccount %s, annotations %v", account.Name, account.Annotations)
	}
	if names := render(t, at("nameOverride", "fair")); the[*appsv1.DaemonSet](t, names).Name != "fairlead" {
		t.Errorf("the release's name has that of the chart in it: %s", the[*appsv1.DaemonSet](t, names).Name)
	}
}

// flowsOf returns how many flows an agent allows on a node with so many processors and enough
// memory, as its option says; cmd/fairlead has a test that it says so.
func flowsOf(t *testing.T, processors uint64) uint64 {
	t.Helper()
	for _, o := range config.Options() {
		var each, least uint64
		if n, _ := fmt.Sscanf(o.Shown, "%d per processor, at least %d", &each, &least); o.Name == "conntrack-max" && n == 2 {
			return max(each*processors, least)
		}
	}
	t.Fatal("conntrack-max does not say how many flows there are by default")
	return 0
}

// The memory request covers the agent's maps when the flow map is full, and the process itself.
// Unless the values say how many flows there may be, they are those of four processors.
func TestMemory(t *testing.T) {
	t.Parallel()
	const processors, process, flow = 16, 128 << 20, 512 // bytes of a flow, as fairlead preflight estimates
	for _, tt := range []struct {
		asked any
		flows uint64
	}{{nil, flowsOf(t, 4)}, {65536, 65536}, {65537, 131072}, {1000000, 1 << 20}, {1 << 26, 1 << 26}} {
		room := maps.Room{HalfOpen: uint32(tt.flows * 2 / 8), Datagrams: processors * 4096}
		start, err := maps.Footprint(maps.MinSizes(), room, processors)
		if err != nil {
			t.Fatal(err)
		}
		need := int64(start + process + tt.flows*flow)
		have := named(t, daemonSet(t, at("bpf.ctMax", tt.asked)).Spec.Template.Spec.Containers, "agent").Resources
		if memory := have.Requests.Memory().Value(); memory < need || memory > need+need/10 {
			t.Errorf("bpf.ctMax %v: %d MiB, but %d are needed", tt.asked, memory>>20, need>>20)
		}
		past := named(t, daemonSet(t, at("bpf.ctMax", tt.asked), at("sockmap.enabled", true)).Spec.Template.Spec.Containers, "agent").Resources
		if more, need := past.Requests.Memory().Value()-have.Requests.Memory().Value(), pastTCP(t); more < need || more > need+need/10 {
			t.Errorf("past TCP: %d MiB more, but %d are needed", more>>20, need>>20)
		}
		if len(have.Limits) != 0 || have.Requests.Cpu().MilliValue() != 100 {
			t.Errorf("limits %v, CPU %v", have.Limits, have.Requests.Cpu())
		}
	}
}
