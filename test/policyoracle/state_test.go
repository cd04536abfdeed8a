package policyoracle

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"fairlead.io/fairlead/pkg/source"
)

// state is the objects of a cluster.
type state struct {
	namespaces []*corev1.Namespace
	pods       []*corev1.Pod
	policies   []*networkingv1.NetworkPolicy
	cluster    []*source.ClusterPolicy
}

// probe is the first packet of a flow. Without a protocol it is one that has no ports.
type probe struct {
	src, dst string
	protocol corev1.Protocol
	port     int
}

func (s *state) namespace(name string) *corev1.Namespace {
	for _, namespace := range s.namespaces {
		if namespace.Name == name {
			return namespace
		}
	}
	return nil
}

// holder returns the pod that has an address.
func (s *state) holder(addr string) *corev1.Pod {
	for _, pod := range s.pods {
		if pod.Spec.HostNetwork || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		for _, ip := range pod.Status.PodIPs {
			if ip.IP == addr {
				return pod
			}
		}
	}
	return nil
}

// text shows a state as manifests.
func (s *state) text() string {
	var out strings.Builder
	show := func(object any) {
		text, err := yaml.Marshal(object)
		if err != nil {
			panic(err) // they are plain types
		}
		out.WriteString("---\n" + string(text))
	}
	for _, object := range s.namespaces {
		show(object)
	}
	for _, object := range s.pods {
		show(object)
	}
	for _, object := range s.policies {
		show(object)
	}
	for _, object := range s.cluster {
		show(object)
	}
	return out.String()
}
