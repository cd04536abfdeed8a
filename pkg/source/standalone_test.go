package source

import (
	"testing"

	"fairlead.io/fairlead/pkg/model"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
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

// TestSelectors compares the label selectors with the translation, which must leave out the same
// objects.
func TestSelectors(t *testing.T) {
	services, err := labels.Parse(ServiceSelector)
	if err != nil {
		t.Fatal(err)
	}
	slices, err := labels.Parse(SliceSelector)
	if err != nil {
		t.Fatal(err)
	}
	const foreign, headless = "service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"
	for _, test := range []struct {
		labels         map[string]string
		service, slice bool
	}{
		{nil, true, true},
		{map[string]string{"app": "web"}, true, true},
		{map[string]string{foreign: ""}, false, true},
		{map[string]string{foreign: "x", "app": "web"}, false, true},
		{map[string]string{headless: "false"}, true, false},
		{map[string]string{headless: "", foreign: ""}, false, false},
	} {
		set := labels.Set(test.labels)
		service := Service(webService(func(s *corev1.Service) { s.Labels = test.labels }))
		if got, selected := service != nil, services.Matches(set); got != test.service || selected != test.service {
			t.Errorf("Service with labels %v: translated is %v, selected is %v, want %v", set, got, selected, test.service)
		}
		slice := Slice(webSlice(func(s *discoveryv1.EndpointSlice) {
			for label, value := range test.labels {
				s.Labels[label] = value
			}
		}))
		if got, selected := slice != nil, slices.Matches(set); got != test.slice || selected != test.slice {
			t.Errorf("slice with labels %v: translated is %v, selected is %v, want %v", set, got, selected, test.slice)
		}
	}
}
