package source

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTriggered(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	for text, want := range map[string]int64{
		at.Format(time.RFC3339Nano):                              at.UnixNano(),
		at.Truncate(time.Second).Format(time.RFC3339):            at.Truncate(time.Second).UnixNano(),
		at.In(time.FixedZone("", 3600)).Format(time.RFC3339Nano): at.UnixNano(),
		"":                     0,
		"yesterday":            0,
		"9999-12-31T23:59:59Z": 0,
		"0001-01-01T00:00:00Z": 0,
	} {
		slice := Slice(&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
				Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: text},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
		})
		if slice.Triggered != want {
			t.Errorf("%q: %d, want %d", text, slice.Triggered, want)
		}
		if len(slice.Problems) > 0 {
			t.Errorf("%q: %v", text, slice.Problems)
		}
	}
}
