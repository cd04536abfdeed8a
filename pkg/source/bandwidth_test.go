package source

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A rate is read as Kubernetes reads it; what is none limits nothing, and its author is told.
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
