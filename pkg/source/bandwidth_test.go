package source

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.io/fairlead/pkg/model"
)

// TestEgress checks that a rate is parsed as Kubernetes does. An invalid one sets no limit and is
// reported.
func TestEgress(t *testing.T) {
	for text, want := range map[string]uint64{
		"1k": 1000, "10M": 10e6, "1.5M": 1.5e6, "1Mi": 1 << 20, "1P": 1e15, "1000": 1000, "1e6": 1e6, "+2G": 2e9, "1E3": 1000,
		"": 0, "0": 0, "999": 0, "999m": 0, "2P": 0, "1E": 0, "-10M": 0, "10 M": 0, "10Mbit": 0, "fast": 0, "1e99": 0, "1e9999999999": 0,
		"99999999999999999999999999": 0, "NaN": 0, "1..5M": 0,
	} {
		got := Pod(webPod(func(pod *corev1.Pod) { pod.Annotations = map[string]string{"kubernetes.io/egress-bandwidth": text} }))
		if got.Egress != want {
			t.Errorf("%q: %d bits a second, want %d", text, got.Egress, want)
		}
		if want == 0 {
			checkProblem(t, got.Problems, "InvalidBandwidth", "kubernetes.io/egress-bandwidth")
		} else if len(got.Problems) > 0 {
			t.Errorf("%q: %v", text, got.Problems)
		}
	}
}

// TestShare checks that namespaces and nodes limit what their pods send together, by an annotation
// that only they may have.
func TestShare(t *testing.T) {
	const name = "fairlead.io/egress-bandwidth"
	for text, want := range map[string]uint64{"100M": 100e6, "": 0, "-1": 0} {
		meta := metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{name: text}}
		namespace, node := Namespace(&corev1.Namespace{ObjectMeta: meta}), Node(&corev1.Node{ObjectMeta: meta})
		if namespace.Egress != want || node.Egress != want {
			t.Errorf("%q: %d and %d bits a second, want %d", text, namespace.Egress, node.Egress, want)
		}
		for _, problems := range [][]model.Problem{namespace.Problems, node.Problems} {
			if want == 0 {
				checkProblem(t, problems, "InvalidBandwidth", name)
			} else if len(problems) > 0 {
				t.Errorf("%q: %v", text, problems)
			}
		}
	}
	pod := Pod(webPod(func(pod *corev1.Pod) { pod.Annotations = map[string]string{name: "100M"} }))
	checkProblem(t, pod.Problems, "MisplacedAnnotation", "kubernetes.io/egress-bandwidth")
	if pod.Egress != 0 {
		t.Errorf("a pod may send %d bits a second", pod.Egress)
	}
}

// TestClass checks that a pod has the class that its annotation names, or else its QoS class.
func TestClass(t *testing.T) {
	for _, tt := range []struct {
		says string
		is   corev1.PodQOSClass
		want model.Class
		bad  bool
	}{
		{"", corev1.PodQOSGuaranteed, model.Guaranteed, false},
		{"", corev1.PodQOSBurstable, model.Burstable, false},
		{"", corev1.PodQOSBestEffort, model.BestEffort, false},
		{"", "", model.Burstable, false},
		{"guaranteed", corev1.PodQOSBestEffort, model.Guaranteed, false},
		{"burstable", corev1.PodQOSBestEffort, model.Burstable, false},
		{"besteffort", corev1.PodQOSGuaranteed, model.BestEffort, false},
		{"BestEffort", corev1.PodQOSGuaranteed, model.Guaranteed, true},
		{"urgent", corev1.PodQOSBestEffort, model.BestEffort, true},
	} {
		pod := Pod(webPod(func(pod *corev1.Pod) {
			pod.Status.QOSClass = tt.is
			if tt.says != "" {
				pod.Annotations = map[string]string{"fairlead.io/bandwidth-priority": tt.says}
			}
		}))
		if pod.Class != tt.want {
			t.Errorf("%q, %s: class %d, want %d", tt.says, tt.is, pod.Class, tt.want)
		}
		if tt.bad {
			checkProblem(t, pod.Problems, "InvalidPriority", "fairlead.io/bandwidth-priority")
		} else if len(pod.Problems) > 0 {
			t.Errorf("%q, %s: %v", tt.says, tt.is, pod.Problems)
		}
	}
}

func TestBBR(t *testing.T) {
	for _, tt := range []struct {
		says string
		want model.Choice
		bad  bool
	}{{"", model.Unsaid, false}, {"true", model.Yes, false}, {"false", model.No, false}, {"True", model.Unsaid, true}, {"bbr", model.Unsaid, true}} {
		pod := Pod(webPod(func(pod *corev1.Pod) {
			if tt.says != "" {
				pod.Annotations = map[string]string{"fairlead.io/bbr": tt.says}
			}
		}))
		if pod.BBR != tt.want {
			t.Errorf("%q: %d, want %d", tt.says, pod.BBR, tt.want)
		}
		if tt.bad {
			checkProblem(t, pod.Problems, "InvalidBBR", "fairlead.io/bbr")
		} else if len(pod.Problems) > 0 {
			t.Errorf("%q: %v", tt.says, pod.Problems)
		}
	}
}

// TestBandwidthOfHostNetwork checks that a pod in the host's network namespace is told that its
// annotations about rates are ignored, valid or not, and that it has none of what they ask for.
func TestBandwidthOfHostNetwork(t *testing.T) {
	for name, values := range map[string][]string{
		"kubernetes.io/egress-bandwidth": {"10M", "fast"}, "kubernetes.io/ingress-bandwidth": {"10M", "fast"},
		"fairlead.io/bandwidth-priority": {"guaranteed", "urgent"}, "fairlead.io/bbr": {"true", "bbr"},
	} {
		for _, value := range values {
			pod := Pod(webPod(func(pod *corev1.Pod) {
				pod.Spec.HostNetwork, pod.Annotations = true, map[string]string{name: value}
			}))
			checkProblem(t, pod.Problems, "BandwidthIgnored", name+" is ignored: a pod of the host's network has no device of its own")
			if pod.Egress != 0 || pod.Ingress != 0 || pod.Class != model.Burstable || pod.BBR != model.Unsaid {
				t.Errorf("%s %q: %d and %d bits a second, class %d, BBR %d", name, value, pod.Egress, pod.Ingress, pod.Class, pod.BBR)
			}
		}
	}
}
