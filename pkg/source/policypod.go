package source

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"fairlead.io/fairlead/pkg/model"
)

// PolicyPod translates a Pod of any node to what policies need of it. A pod that has ended owns no
// address: another pod may have it by now.
func PolicyPod(pod *corev1.Pod) *model.PolicyPod {
	out := &model.PolicyPod{
		Name:        model.Name{Namespace: pod.Namespace, Name: pod.Name},
		Created:     created(&pod.ObjectMeta),
		Labels:      maps.Clone(pod.Labels),
		HostNetwork: pod.Spec.HostNetwork,
	}
	if out.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return out
	}
	seen := map[model.Family]bool{}
	for _, addr := range podAddrs(&problems{}, &pod.Status) {
		if family := model.FamilyOf(addr); !seen[family] {
			seen[family] = true
			out.Addrs = append(out.Addrs, addr)
		}
	}
	out.Ports = namedPorts(&pod.Spec)
	return out
}

// namedPorts returns the ports with names of the containers that run as long as the pod does.
func namedPorts(spec *corev1.PodSpec) (list []model.NamedPort) {
	for i := range spec.Containers {
		list = appendNamed(list, spec.Containers[i].Ports)
	}
	for i := range spec.InitContainers {
		if c := &spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			list = appendNamed(list, c.Ports)
		}
	}
	return list
}

func appendNamed(list []model.NamedPort, in []corev1.ContainerPort) []model.NamedPort {
	for i := range in {
		if proto, known := protocol(in[i].Protocol); known && in[i].Name != "" && isPort(in[i].ContainerPort) {
			list = append(list, model.NamedPort{Name: in[i].Name, Protocol: proto, Port: uint16(in[i].ContainerPort)})
		}
	}
	return list
}

// PodReceiver takes the pods of all nodes as policies see them. They are too many to be kept as
// objects, so they go straight to who needs them. Its methods may block while it is busy.
type PodReceiver interface {
	SetPod(*model.PolicyPod)
	DeletePod(model.Name)
	ReplacePods([]*model.PolicyPod)
	// ForgetPods says that pods are no longer delivered.
	ForgetPods()
}
