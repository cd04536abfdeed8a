package source

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.io/fairlead/pkg/model"
)

func containers(names ...string) corev1.PodSpec {
	var spec corev1.PodSpec
	for _, name := range names {
		spec.Containers = append(spec.Containers, corev1.Container{Name: name})
	}
	return spec
}

func initContainer(spec corev1.PodSpec, name string, restart *corev1.ContainerRestartPolicy) corev1.PodSpec {
	spec.InitContainers = []corev1.Container{{Name: name, RestartPolicy: restart}}
	return spec
}

func annotated(name, value string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Annotations: map[string]string{name: value}}
}

func TestMesh(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for _, test := range []struct {
		name string
		pod  corev1.Pod
		want string
	}{
		{"none", corev1.Pod{Spec: containers("app", "log")}, ""},
		{"istio", corev1.Pod{Spec: containers("app", "istio-proxy")}, "istio"},
		{"istio, sidecar first", corev1.Pod{Spec: containers("istio-proxy", "app")}, "istio"},
		{"istio, native sidecar", corev1.Pod{Spec: initContainer(containers("app"), "istio-proxy", &always)}, "istio"},
		{"istio, not a sidecar", corev1.Pod{Spec: initContainer(containers("app"), "istio-proxy", nil)}, ""},
		{"istio gateway", corev1.Pod{Spec: containers("istio-proxy")}, ""},
		{"istio ambient", corev1.Pod{ObjectMeta: annotated("ambient.istio.io/redirection", "enabled")}, "istio-ambient"},
		{"istio ambient, not redirected", corev1.Pod{ObjectMeta: annotated("ambient.istio.io/redirection", "disabled")}, ""},
		{"linkerd", corev1.Pod{Spec: containers("app", "linkerd-proxy")}, "linkerd"},
		{"kuma", corev1.Pod{Spec: containers("app", "kuma-sidecar")}, "kuma"},
		{"consul", corev1.Pod{ObjectMeta: annotated("consul.hashicorp.com/transparent-proxy-status", "enabled")}, "consul"},
		{"no containers", corev1.Pod{}, ""},
	} {
		if got := Pod(&test.pod).Mesh; got != test.want {
			t.Errorf("%s: mesh %q, want %q", test.name, got, test.want)
		}
	}
}

func TestRuntime(t *testing.T) {
	class := "kata-qemu"
	pod := &corev1.Pod{}
	if got := Pod(pod).Runtime; got != "" {
		t.Errorf("plain: %q", got)
	}
	pod.Spec.RuntimeClassName = &class
	if got := Pod(pod).Runtime; got != "kata-qemu" {
		t.Errorf("of a class: %q", got)
	}
	pod.Labels = map[string]string{"kubevirt.io": "virt-launcher"}
	if got := Pod(pod).Runtime; got != "kubevirt" {
		t.Errorf("virtual machine: %q", got)
	}
}

// TestLocalUID checks that the creator of a pod cannot pass it off as another one.
func TestLocalUID(t *testing.T) {
	const uid, hash = "e0e2cf4e-1b0e-4b64-8c54-0d5f4f2b1a10", "0123456789abcdef0123456789abcdef"
	for _, test := range []struct{ annotation, value, want string }{
		{"kubernetes.io/config.mirror", hash, hash},
		{"kubernetes.io/config.hash", hash, uid},
		{"kubernetes.io/config.mirror", "9f9a9b9c-1b0e-4b64-8c54-0d5f4f2b1a10", uid},
		{"kubernetes.io/config.mirror", "../../" + hash[6:], uid},
		{"kubernetes.io/config.mirror", "", uid},
		{"kubernetes.io/config.mirror", strings.Repeat("a", 1<<20), uid},
	} {
		pod := &corev1.Pod{ObjectMeta: annotated(test.annotation, test.value)}
		pod.UID = uid
		if got := Pod(pod).LocalUID; got != test.want {
			t.Errorf("%s=%.64q: %q, want %q", test.annotation, test.value, got, test.want)
		}
	}
}

func TestSocketLB(t *testing.T) {
	for _, test := range []struct {
		value string
		want  model.SocketLB
		says  string // in the problem's message
	}{
		{"on", model.SocketLBOn, ""},
		{"off", model.SocketLBOff, ""},
		{"maybe", model.SocketLBUnset, `"maybe" is neither "on" nor "off"`},
		{"Off", model.SocketLBUnset, `"Off" is neither`},
		{"", model.SocketLBUnset, `"" is neither`},
		{strings.Repeat("o\n", 1<<16), model.SocketLBUnset, `"o\no\no`},
	} {
		meta := annotated("fairlead.io/socket-lb", test.value)
		pod, namespace := Pod(&corev1.Pod{ObjectMeta: meta}), Namespace(&corev1.Namespace{ObjectMeta: meta})
		if pod.SocketLB != test.want || namespace.SocketLB != test.want {
			t.Errorf("%.64q: pod %d, namespace %d, want %d", test.value, pod.SocketLB, namespace.SocketLB, test.want)
		}
		if diff := cmp.Diff(pod.Problems, namespace.Problems); diff != "" {
			t.Errorf("%.64q: the problems differ (-pod +namespace):\n%s", test.value, diff)
		}
		switch {
		case test.says == "" && len(pod.Problems) == 0:
		case test.says == "" || len(pod.Problems) != 1:
			t.Errorf("%.64q: problems %v", test.value, pod.Problems)
		case pod.Problems[0].Reason != "InvalidSocketLB" || !strings.Contains(pod.Problems[0].Message, test.says) ||
			len(pod.Problems[0].Message) > 512:
			t.Errorf("%.64q: problem %.999q", test.value, pod.Problems[0])
		}
	}
}

// TestSocketLBMisplaced checks that the annotation is a mistake on other kinds of object, and so
// are their annotations on a Namespace.
func TestSocketLBMisplaced(t *testing.T) {
	service := &corev1.Service{ObjectMeta: annotated("fairlead.io/socket-lb", "off"), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}}
	problems := Service(service).Problems
	if len(problems) == 0 || problems[0].Message != "annotation fairlead.io/socket-lb is ignored: move it to a Pod or a Namespace" {
		t.Errorf("on a Service: %v", problems)
	}
	problems = Namespace(&corev1.Namespace{ObjectMeta: annotated("fairlead.io/algorithm", "maglev")}).Problems
	if len(problems) != 1 || problems[0].Reason != "MisplacedAnnotation" {
		t.Errorf("on a Namespace: %v", problems)
	}
}
