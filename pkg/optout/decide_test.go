package optout

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/model"
)

func TestDecide(t *testing.T) {
	const unset, on, off = model.SocketLBUnset, model.SocketLBOn, model.SocketLBOff
	rules := Rules{Runtimes: []string{"kata*", "gvisor"}, Meshes: []string{"istio"}, Proxies: true}
	for _, test := range []struct {
		name      string
		pod       model.Pod
		namespace model.SocketLB
		want      string // empty means balanced
	}{
		{"no annotation and no rule", model.Pod{}, unset, ""},
		{"the pod", model.Pod{SocketLB: off}, unset, "annotation of the pod"},
		{"the namespace", model.Pod{}, off, "annotation of the namespace"},
		{"the pod against its namespace", model.Pod{SocketLB: on}, off, ""},
		{"the pod and not its namespace", model.Pod{SocketLB: off}, on, "annotation of the pod"},
		{"a runtime", model.Pod{Runtime: "kata-qemu"}, unset, "runtime kata-qemu"},
		{"a runtime by its whole name", model.Pod{Runtime: "gvisor"}, unset, "runtime gvisor"},
		{"another runtime", model.Pod{Runtime: "gvisor-2"}, unset, ""},
		{"a mesh", model.Pod{Mesh: "istio"}, unset, "mesh istio"},
		{"another mesh", model.Pod{Mesh: "linkerd"}, unset, ""},
		{"the pod against a rule", model.Pod{SocketLB: on, Runtime: "kata", Mesh: "istio"}, unset, ""},
		{"the namespace against a rule", model.Pod{Runtime: "kata", Mesh: "istio"}, on, ""},
		{"a proxy", model.Pod{Proxy: "envoy"}, unset, "proxy envoy"},
		{"a proxy against the namespace", model.Pod{Proxy: "envoy"}, on, "proxy envoy"},
		{"the pod against its proxy", model.Pod{Proxy: "envoy", SocketLB: on}, unset, ""},
		{"a proxy for a pod of the host's network", model.Pod{Proxy: "envoy", HostNetwork: true}, unset, ""},
		{"a rule in a namespace that is off", model.Pod{Runtime: "kata"}, off, "annotation of the namespace"},
	} {
		got, out := rules.decide(&test.pod, test.namespace)
		if out != (test.want != "") || got.text != test.want {
			t.Errorf("%s: %t, %q, want %q", test.name, out, got.text, test.want)
		}
	}
	if _, out := new(Rules).decide(&model.Pod{Runtime: "kata", Mesh: "istio", Proxy: "envoy"}, unset); out {
		t.Error("a pod opts out without rules")
	}
}

func TestParseRules(t *testing.T) {
	known := []string{"istio", "linkerd"}
	got, err := ParseRules(" kata*, gvisor,,", "istio ,linkerd", known)
	if diff := cmp.Diff(Rules{Runtimes: []string{"kata*", "gvisor"}, Meshes: known}, got); diff != "" || err != nil {
		t.Errorf("%v, rules (-want +got):\n%s", err, diff)
	}
	if got, err := ParseRules("", "", known); err != nil || got.Runtimes != nil || got.Meshes != nil {
		t.Errorf("nothing: %v, %v", got, err)
	}
	for _, bad := range [][2]string{{"kata[", ""}, {"", "istiod"}, {"", "*"}} {
		if _, err := ParseRules(bad[0], bad[1], known); err == nil {
			t.Errorf("ParseRules accepts %q", bad)
		}
	}
}
