package source

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func webPod(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-0", UID: "u",
			CreationTimestamp: metav1.NewTime(time.Unix(1700000000, 0)),
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Ports: []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 80, Protocol: corev1.ProtocolTCP}, {ContainerPort: 9090}},
		}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.244.0.5",
			PodIPs: []corev1.PodIP{{IP: "10.244.0.5"}, {IP: "fd00::5"}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func webPodModel(changes ...func(*model.Pod)) *model.Pod {
	pod := &model.Pod{
		Name: model.Name{Namespace: "shop", Name: "web-0"}, UID: "u", LocalUID: "u", Created: 1700000000,
		Addrs:     addrs("10.244.0.5", "fd00::5"),
		HostPorts: []model.HostPort{{Port: 80, ContainerPort: 8080, Protocol: model.TCP}},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func hostPort(ports ...corev1.ContainerPort) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Containers[0].Ports = ports }
}

func TestPod(t *testing.T) {
	node := netip.MustParseAddr("192.0.2.1")
	tests := []struct {
		name   string
		change func(*corev1.Pod)
		want   func(*model.Pod)
	}{
		{"plain", func(*corev1.Pod) {}, func(*model.Pod) {}},
		{
			"one port number on two addresses and for two protocols",
			hostPort(
				corev1.ContainerPort{ContainerPort: 1, HostPort: 54323, HostIP: "127.0.0.1", Protocol: corev1.ProtocolTCP},
				corev1.ContainerPort{ContainerPort: 2, HostPort: 54323, HostIP: "192.0.2.1", Protocol: corev1.ProtocolTCP},
				corev1.ContainerPort{ContainerPort: 3, HostPort: 54323, HostIP: "192.0.2.1", Protocol: corev1.ProtocolUDP},
			),
			func(m *model.Pod) {
				m.HostPorts = []model.HostPort{
					{HostIP: netip.MustParseAddr("127.0.0.1"), Port: 54323, ContainerPort: 1, Protocol: model.TCP},
					{HostIP: node, Port: 54323, ContainerPort: 2, Protocol: model.TCP},
					{HostIP: node, Port: 54323, ContainerPort: 3, Protocol: model.UDP},
				}
			},
		},
		{"any IPv4 address", hostPort(corev1.ContainerPort{ContainerPort: 8080, HostPort: 80, HostIP: "0.0.0.0"}), func(*model.Pod) {}},
		{"any IPv6 address", hostPort(corev1.ContainerPort{ContainerPort: 8080, HostPort: 80, HostIP: "::"}), func(*model.Pod) {}},
		{
			"sidecars have ports, other init containers have not",
			func(pod *corev1.Pod) {
				pod.Spec.InitContainers = []corev1.Container{
					{RestartPolicy: ptr(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{ContainerPort: 1, HostPort: 81}}},
					{RestartPolicy: ptr(corev1.ContainerRestartPolicyNever), Ports: []corev1.ContainerPort{{ContainerPort: 1, HostPort: 82}}},
					{Ports: []corev1.ContainerPort{{ContainerPort: 1, HostPort: 83}}},
				}
			},
			func(m *model.Pod) {
				m.HostPorts = append(m.HostPorts, model.HostPort{Port: 81, ContainerPort: 1, Protocol: model.TCP})
			},
		},
		{
			"in the host's namespace",
			func(pod *corev1.Pod) { pod.Spec.HostNetwork = true },
			func(m *model.Pod) { m.HostNetwork, m.HostPorts = true, nil },
		},
		{
			"succeeded",
			func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded },
			func(m *model.Pod) { m.HostPorts, m.Addrs, m.Finished = nil, nil, true },
		},
		{
			"failed",
			func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed },
			func(m *model.Pod) { m.HostPorts, m.Addrs, m.Finished = nil, nil, true },
		},
		{
			"terminating pods still work",
			func(pod *corev1.Pod) { pod.DeletionTimestamp = ptr(metav1.Now()) },
			func(*model.Pod) {},
		},
		{
			"no address yet",
			func(pod *corev1.Pod) { pod.Status = corev1.PodStatus{Phase: corev1.PodPending} },
			func(m *model.Pod) { m.Addrs = nil },
		},
		{
			"one address",
			func(pod *corev1.Pod) { pod.Status.PodIPs = nil },
			func(m *model.Pod) { m.Addrs = addrs("10.244.0.5") },
		},
		{
			"unchecked",
			func(pod *corev1.Pod) { pod.Annotations = map[string]string{"fairlead.io/source-check": "off"} },
			func(m *model.Pod) {
				m.Annotations, m.Unchecked = map[string]string{"fairlead.io/source-check": "off"}, true
			},
		},
		{
			"checked",
			func(pod *corev1.Pod) { pod.Annotations = map[string]string{"fairlead.io/source-check": "on"} },
			func(m *model.Pod) { m.Annotations = map[string]string{"fairlead.io/source-check": "on"} },
		},
		{
			"with a proxy",
			func(pod *corev1.Pod) { pod.Annotations = map[string]string{"fairlead.io/l7-proxy": "envoy"} },
			func(m *model.Pod) {
				m.Annotations, m.Proxy = map[string]string{"fairlead.io/l7-proxy": "envoy"}, "envoy"
			},
		},
		{
			"annotations of ours",
			func(pod *corev1.Pod) { pod.Annotations = map[string]string{"fairlead.io/x": "1", "example.com/x": "2"} },
			func(m *model.Pod) { m.Annotations = map[string]string{"fairlead.io/x": "1"} },
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(webPodModel(test.want), Pod(webPod(test.change)), comparers); diff != "" {
				t.Errorf("translation differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodProblems(t *testing.T) {
	first := corev1.ContainerPort{ContainerPort: 8080, HostPort: 80}
	tests := []struct {
		name   string
		change func(*corev1.Pod)
		reason string
		says   string
	}{
		{"host port out of range", hostPort(first, corev1.ContainerPort{ContainerPort: 1, HostPort: 65536}), "InvalidPort", "65536"},
		{"container port out of range", hostPort(first, corev1.ContainerPort{ContainerPort: 0, HostPort: 81}), "InvalidPort", "hostPort 81"},
		{"host address", hostPort(first, corev1.ContainerPort{ContainerPort: 1, HostPort: 81, HostIP: "eth0"}), "InvalidAddress", "eth0"},
		{"protocol", hostPort(first, corev1.ContainerPort{ContainerPort: 1, HostPort: 81, Protocol: "QUIC"}), "UnsupportedProtocol", "QUIC"},
		{
			"one host port twice",
			hostPort(first, corev1.ContainerPort{ContainerPort: 1, HostPort: 80, HostIP: "0.0.0.0", Protocol: corev1.ProtocolTCP}),
			"DuplicatePort", "hostPort 80",
		},
		{
			"pod address",
			func(pod *corev1.Pod) { pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: "?"}) },
			"InvalidAddress", "?",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := Pod(webPod(test.change))
			checkProblem(t, got.Problems, test.reason, test.says)
			got.Problems = nil
			if diff := cmp.Diff(webPodModel(), got, comparers); diff != "" {
				t.Errorf("the rest differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodWithMisplacedAnnotation(t *testing.T) {
	got := Pod(webPod(func(pod *corev1.Pod) { pod.Annotations = map[string]string{"fairlead.io/weight": "3"} }))
	checkProblem(t, got.Problems, "MisplacedAnnotation", "an EndpointSlice")
}

// TestBadSourceCheck checks that a pod is checked unless its annotation says exactly "off", and
// only a pod's own annotation counts.
func TestBadSourceCheck(t *testing.T) {
	for _, value := range []string{"", "Off", "false", " off", "off\n", strings.Repeat("x", 1<<16)} {
		got := Pod(webPod(func(pod *corev1.Pod) { pod.Annotations = map[string]string{"fairlead.io/source-check": value} }))
		checkProblem(t, got.Problems, "InvalidSourceCheck", "fairlead.io/source-check")
		if got.Unchecked {
			t.Errorf("%.64q turns the check off", value)
		}
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{"fairlead.io/source-check": "optional"}}}
	got := Namespace(namespace)
	checkProblem(t, got.Problems, "MisplacedAnnotation", "a Pod")
	if got.MayUncheck {
		t.Error("an annotation of a Namespace counts as its label")
	}
	for value, want := range map[string]bool{"optional": true, "off": false, "": false, "Optional": false} {
		namespace.Labels = map[string]string{"fairlead.io/source-check": value}
		if Namespace(namespace).MayUncheck != want {
			t.Errorf("label %q: MayUncheck is not %t", value, want)
		}
	}
}
