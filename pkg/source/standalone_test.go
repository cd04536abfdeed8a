package source

import (
	"testing"

	"fairlead.io/fairlead/pkg/model"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func TestStandalone(t *testing.T) {
	noAddress := func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = "", nil, nil
	}
	tests := []struct {
		name    string
		changes []func(*corev1.Service)
		reason  string
		want    *model.Service
	}{
		{"with a ClusterIP", nil, "", webModel()},
		{
			"with an external IP alone",
			[]func(*corev1.Service){noAddress, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.1"} }},
			"",
			webModel(func(m *model.Service) { m.ClusterIPs, m.ExternalIPs = nil, addrs("203.0.113.1") }),
		},
		{
			"without any address",
			[]func(*corev1.Service){noAddress},
			"NoAddress",
			webModel(func(m *model.Service) { m.ClusterIPs = nil }),
		},
		{
			"without a node port",
			[]func(*corev1.Service){func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }},
			"NoNodePort",
			webModel(),
		},
		{"headless", []func(*corev1.Service){func(s *corev1.Service) { s.Spec.ClusterIP = "None" }}, "", nil},
		{
			"ExternalName",
			[]func(*corev1.Service){noAddress, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }},
			"", nil,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := Standalone(webService(test.changes...))
			if test.reason != "" {
				checkProblem(t, got.Problems, test.reason, "set")
				got.Problems = nil
			}
			if diff := cmp.Diff(test.want, got, comparers); diff != "" {
				t.Errorf("translation differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSelector holds the selector against the translation, which must leave out the same objects.
func TestSelector(t *testing.T) {
	selector, err := labels.Parse(Selector)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []map[string]string{
		nil,
		{"app": "web"},
		{"service.kubernetes.io/service-proxy-name": ""},
		{"service.kubernetes.io/service-proxy-name": "x", "app": "web"},
		{"service.kubernetes.io/headless": "false"},
		{"service.kubernetes.io/headless": "", "service.kubernetes.io/service-proxy-name": ""},
	} {
		service := Service(webService(func(s *corev1.Service) { s.Labels = set }))
		if got, want := service != nil, selector.Matches(labels.Set(set)); got != want {
			t.Errorf("labels %v: translated is %v, selected is %v", set, got, want)
		}
	}
}
