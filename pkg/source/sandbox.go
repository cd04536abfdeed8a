package source

import (
	"encoding/hex"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// localUID returns the UID by which the kubelet knows a pod. For a static pod this is the hash of
// its manifest; the mirror pod in the API server has another UID. The hash comes from an annotation
// that the creator of the pod can set, so a value that could be the UID of someone else's pod is
// ignored.
func localUID(pod *corev1.Pod) string {
	hash := pod.Annotations[corev1.MirrorPodAnnotationKey]
	if raw, err := hex.DecodeString(hash); err != nil || len(raw) != md5Size {
		return string(pod.UID)
	}
	return hash
}

const md5Size = 16

// labelKubeVirt marks the launcher pods of KubeVirt, which run a virtual machine under the ordinary
// runtime.
const labelKubeVirt = "kubevirt.io"

// runtimeOf returns the runtime of a pod, or "" for the ordinary one.
func runtimeOf(pod *corev1.Pod) string {
	if pod.Labels[labelKubeVirt] == "virt-launcher" {
		return "kubevirt"
	}
	if name := pod.Spec.RuntimeClassName; name != nil {
		return *name
	}
	return ""
}

// mesh says how to recognize the pods whose connections a service mesh redirects: by a container of
// that name next to another one (alone, it is a gateway), or by an annotation.
type mesh struct {
	name              string
	container         string
	annotation, value string
}

func meshes() []mesh {
	return []mesh{
		{name: "istio", container: "istio-proxy"},
		{name: "istio-ambient", annotation: "ambient.istio.io/redirection", value: "enabled"},
		{name: "linkerd", container: "linkerd-proxy"},
		{name: "kuma", container: "kuma-sidecar"},
		{name: "consul", annotation: "consul.hashicorp.com/transparent-proxy-status", value: "enabled"},
	}
}

// Meshes returns the names of the service meshes whose pods can be recognized.
func Meshes() []string {
	var names []string
	for _, m := range meshes() {
		names = append(names, m.name)
	}
	return names
}

// meshOf returns the service mesh of a pod, or "" if it has none.
func meshOf(pod *corev1.Pod) string {
	for _, m := range meshes() {
		if m.annotation != "" && pod.Annotations[m.annotation] == m.value || m.container != "" && runsAlongside(&pod.Spec, m.container) {
			return m.name
		}
	}
	return ""
}

// runsAlongside reports whether the pod has a container of that name that runs as long as the pod does,
// next to another container.
func runsAlongside(spec *corev1.PodSpec, name string) bool {
	named := func(c corev1.Container) bool { return c.Name == name }
	if slices.ContainsFunc(spec.Containers, named) {
		return len(spec.Containers) > 1
	}
	at := slices.IndexFunc(spec.InitContainers, named)
	if at < 0 {
		return false
	}
	again := spec.InitContainers[at].RestartPolicy
	return again != nil && *again == corev1.ContainerRestartPolicyAlways
}
