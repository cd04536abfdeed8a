package source

import (
	"maps"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/model"
	corev1 "k8s.io/api/core/v1"
)

// Pod translates a Pod. A finished pod keeps neither host ports nor addresses, because another pod
// may have them by now. Ports of a pod in the host's network namespace are the host's own and need
// no translation.
func Pod(pod *corev1.Pod) *model.Pod {
	p := &problems{}
	checkMisplaced(p, pod.Annotations, kindPod)
	out := &model.Pod{
		Name:        model.Name{Namespace: pod.Namespace, Name: pod.Name},
		UID:         string(pod.UID),
		Created:     created(&pod.ObjectMeta),
		HostNetwork: pod.Spec.HostNetwork,
		Annotations: ours(pod.Annotations),
		LocalUID:    localUID(pod),
		Finished:    pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		Runtime:     runtimeOf(pod),
		Mesh:        meshOf(pod),
		SocketLB:    socketLB(p, pod.Annotations),
		Unchecked:   unchecked(p, pod.Annotations),
		Proxy:       pod.Annotations[annotationProxy],
		Accelerate:  accelerate(p, pod.Annotations),
	}
	if out.HostNetwork {
		ignoreBandwidth(p, pod.Annotations)
	} else {
		out.Egress, out.Ingress = bandwidth(p, pod.Annotations, annotationEgress), bandwidth(p, pod.Annotations, annotationIngress)
		out.Class, out.BBR = class(p, pod), bbr(p, pod.Annotations)
	}
	if len(pod.Labels) > 0 {
		out.Labels = maps.Clone(pod.Labels)
	}
	if !out.Finished {
		out.Addrs = podAddrs(p, &pod.Status)
		if !out.HostNetwork {
			out.HostPorts = hostPorts(p, &pod.Spec)
			out.Ports = namedPorts(&pod.Spec)
		}
	}
	out.Problems = p.all()
	return out
}

func podAddrs(p *problems, status *corev1.PodStatus) []netip.Addr {
	texts := make([]string, 0, 2)
	for i := range status.PodIPs {
		texts = append(texts, status.PodIPs[i].IP)
	}
	if len(texts) == 0 && status.PodIP != "" {
		texts = append(texts, status.PodIP)
	}
	if len(texts) == 0 {
		return nil
	}
	list := make([]netip.Addr, 0, len(texts))
	for _, text := range texts {
		addr, ok := parseAddr(text)
		switch {
		case !ok || addr.IsUnspecified() || addr.IsMulticast():
			p.add("InvalidAddress", "pod address %.64q is ignored: check what wrote the pod's status", text)
		case !slices.Contains(list, addr):
			list = append(list, addr)
		}
	}
	return list
}

// hostPorts collects the host ports of the containers that run as long as the pod does. Init
// containers that end before the pod starts do not count.
func hostPorts(p *problems, spec *corev1.PodSpec) []model.HostPort {
	var list []model.HostPort
	used := taken{}
	for i := range spec.Containers {
		list = appendHostPorts(list, p, used, spec.Containers[i].Ports)
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			list = appendHostPorts(list, p, used, c.Ports)
		}
	}
	return slices.Clip(list)
}

// occupied is what two host ports of a pod must not share.
type occupied struct {
	hostIP   netip.Addr
	port     int32
	protocol model.Protocol
}

func appendHostPorts(list []model.HostPort, p *problems, used taken, in []corev1.ContainerPort) []model.HostPort {
	for i := range in {
		port := &in[i]
		if port.HostPort == 0 {
			continue
		}
		proto, known := protocol(port.Protocol)
		hostIP, parsed := hostIP(port.HostIP)
		switch {
		case !known:
			p.add("UnsupportedProtocol", "hostPort %d is ignored: its protocol %.64q is not known, use TCP, UDP or SCTP",
				port.HostPort, port.Protocol)
		case !isPort(port.HostPort) || !isPort(port.ContainerPort):
			p.add("InvalidPort", "hostPort %d for containerPort %d is ignored: use 1 to 65535", port.HostPort, port.ContainerPort)
		case !parsed:
			// Falling back to every address could expose a port that was meant to be restricted.
			p.add("InvalidAddress", "hostPort %d is ignored: its hostIP %.64q is not an IP address, correct it", port.HostPort, port.HostIP)
		case !used.claim(occupied{hostIP, port.HostPort, proto}):
			p.add("DuplicatePort", "hostPort %d is ignored: another port of the pod has it too, choose another", port.HostPort)
		default:
			list = append(list, model.HostPort{
				HostIP:        hostIP,
				Port:          uint16(port.HostPort),
				ContainerPort: uint16(port.ContainerPort),
				Protocol:      proto,
			})
		}
	}
	return list
}

// hostIP parses a hostIP. It returns the invalid address if the port is for every address of the
// node.
func hostIP(text string) (netip.Addr, bool) {
	if text == "" {
		return netip.Addr{}, true
	}
	addr, ok := parseAddr(text)
	if ok && addr.IsUnspecified() {
		return netip.Addr{}, true
	}
	return addr, ok
}
