package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func mustRender(t *testing.T, settings Settings) (string, *appsv1.DaemonSet) {
	t.Helper()
	text, err := render("fairlead.io/fairlead:1", settings)
	if err != nil {
		t.Fatal(err)
	}
	set := &appsv1.DaemonSet{}
	if err := yaml.UnmarshalStrict(text, set); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return string(text), set
}

// The rig must judge what a user gets: it may set two values and nothing else.
func TestOnlyTwoValuesDiffer(t *testing.T) {
	users, _ := mustRender(t, Settings{})
	rigs, set := mustRender(t, Settings{APIServer: "[fd00::2]:6443", CgroupRoot: "/sys/fs/cgroup/fl-$(NODE_NAME)"})
	var more []string
	for line := range strings.Lines(rigs) {
		if !strings.Contains(users, line) {
			more = append(more, strings.TrimSpace(line))
		}
	}
	want := []string{
		"- --cgroup-root=/sys/fs/cgroup/fl-$(NODE_NAME)",
		`- {name: KUBERNETES_SERVICE_HOST, value: "fd00::2"}`,
		`- {name: KUBERNETES_SERVICE_PORT, value: "6443"}`,
	}
	if diff := cmp.Diff(want, more); diff != "" {
		t.Errorf("lines that the rig adds (-want +have):\n%s", diff)
	}
	kept := strings.Split(rigs, "\n")
	kept = slices.DeleteFunc(kept, func(line string) bool { return slices.Contains(want, strings.TrimSpace(line)) })
	if diff := cmp.Diff(users, strings.Join(kept, "\n")); diff != "" {
		t.Errorf("the rest (-user's +rig's):\n%s", diff)
	}
	if have := set.Spec.Template.Spec.Containers[0].Args; have[len(have)-1] != "--cgroup-root=/sys/fs/cgroup/fl-$(NODE_NAME)" {
		t.Errorf("arguments: %q", have)
	}
}

func TestOptions(t *testing.T) {
	_, set := mustRender(t, Settings{Options: []string{"--dsr=ipip", `--devices={"eth0"}`}})
	if have := set.Spec.Template.Spec.Containers[0].Args; !slices.Equal(have[len(have)-2:], []string{"--dsr=ipip", `--devices={"eth0"}`}) {
		t.Errorf("arguments: %q", have)
	}
}

func TestPrivileges(t *testing.T) {
	_, set := mustRender(t, Settings{})
	pod := set.Spec.Template.Spec
	if len(pod.Containers) != 1 || len(pod.InitContainers) != 0 {
		t.Fatalf("%d containers and %d before them, want the agent alone", len(pod.Containers), len(pod.InitContainers))
	}
	context := pod.Containers[0].SecurityContext
	want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"BPF", "NET_ADMIN", "PERFMON"}}
	if diff := cmp.Diff(want, context.Capabilities); diff != "" {
		t.Errorf("capabilities (-want +have):\n%s", diff)
	}
	if !*context.ReadOnlyRootFilesystem || *context.AllowPrivilegeEscalation || context.Privileged != nil || pod.HostPID || pod.HostIPC {
		t.Errorf("more than the agent needs: %+v", context)
	}
	if context.SeccompProfile == nil || context.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("system calls are not filtered: %+v", context.SeccompProfile)
	}
	if !pod.HostNetwork || pod.PriorityClassName != "system-node-critical" || pod.ServiceAccountName != "fairlead" {
		t.Errorf("pod: %+v", pod)
	}
}

func TestBadAPIServer(t *testing.T) {
	if _, err := render("image", Settings{APIServer: "10.0.0.1"}); err == nil {
		t.Error("an address without a port was taken")
	}
}

// An agent that gives pods their network needs steps before it that may do more than it may itself, and writes to one more place.
func TestPodNetwork(t *testing.T) {
	_, without := mustRender(t, Settings{})
	_, set := mustRender(t, Settings{Routing: "vxlan", Options: []string{"--dsr=ipip"}})
	pod := set.Spec.Template.Spec
	if len(pod.InitContainers) != 2 || pod.InitContainers[0].Args[0] != "init" || pod.InitContainers[1].Args[0] != "install" {
		t.Fatalf("steps before the agent: %+v", pod.InitContainers)
	}
	agent, before := pod.Containers[0], without.Spec.Template.Spec.Containers[0]
	more := agent.Args[len(before.Args):]
	if want := []string{"--pod-network=main", "--routing=vxlan", "--cni-conf-dir=/host/etc/cni/net.d", "--dsr=ipip"}; !slices.Equal(more, want) {
		t.Errorf("arguments %q, want %q", more, want)
	}
	if diff := cmp.Diff(before.SecurityContext, agent.SecurityContext); diff != "" {
		t.Errorf("the agent may do other things (-without, +with a pod network):\n%s", diff)
	}
	places := map[string]string{}
	for _, volume := range pod.Volumes {
		places[volume.Name] = volume.HostPath.Path
	}
	for _, c := range append(pod.InitContainers, agent) {
		for _, mount := range c.VolumeMounts {
			if path, ok := strings.CutPrefix(mount.MountPath, "/host"); ok && path != places[mount.Name] {
				t.Errorf("%s has %s of the node at %s", c.Name, places[mount.Name], mount.MountPath)
			}
		}
	}
}
