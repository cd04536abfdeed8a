package source

import (
	"encoding/hex"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// localUID returns what a kubelet identifies a pod by. A static pod has the hash of its manifest, and the pod that
// mirrors it in the API server another UID. Whoever makes a pod writes its annotations, so a value that could be the UID
// of somebody else's pod does not count.
func localUID(pod *corev1.Pod) string {
	hash := pod.Annotations[corev1.MirrorPodAnnotationKey]
	if raw, err := hex.DecodeString(hash); err != nil || len(raw) != md5Size {
		return string(pod.UID)
	}
	return hash
}

const md5Size = 16

// labelKubeVirt is on the pods that run a virtual machine beside a launcher, under the ordinary runtime.
const labelKubeVirt = "kubevirt.io"

// runtimeOf returns what a pod runs under, "" if that is the ordinary runtime.
func runtimeOf(pod *corev1.Pod) string {
	if pod.Labels[labelKubeVirt] == "virt-launcher" {
		return "kubevirt"
	}
	if name := pod.Spec.RuntimeClassName; name != nil {
		return *name
	}
	return ""
}

// mesh is how the pods of a service mesh are told that have what they dial redirected: by a container of that name
// beside another one, since alone it is a gateway; or by an annotation.
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

// Meshes returns the names of the service meshes whose pods are told from others.
func Meshes() []string {
	var names []string
	for _, m := range meshes() {
		names = append(names, m.name)
	}
	return names
}

// meshOf returns the service mesh of a pod, "" if there is none.
func meshOf(pod *corev1.Pod) string {
	for _, m := range meshes() {
		if m.annotation != "" && pod.Annotations[m.annotation] == m.value || m.container != "" && beside(&pod.Spec, m.container) {
			return m.name
		}
	}
	return ""
}

// beside reports whether a container of that name runs as long as the pod does and another one too.
func beside(spec *corev1.PodSpec, name string) bool {
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
