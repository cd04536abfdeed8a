package source

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"fairlead.io/fairlead/pkg/model"
)

// Kubernetes' own annotations: how many bits a second a Pod may send and receive.
const (
	annotationEgress  = "kubernetes.io/egress-bandwidth"
	annotationIngress = "kubernetes.io/ingress-bandwidth"
)

// quantity matches rates in bits a second. It does not match numbers longer than any reasonable
// rate, so that they are never parsed.
var quantity = regexp.MustCompile(`^\+?[0-9]{1,18}(\.[0-9]{0,9})?([kMGTP]|[KMGTP]i|[eE][0-9]{1,2})?$`)

// class returns the priority of a Pod's packets: what its annotation says, or else the Pod's QoS
// class.
func class(p *problems, pod *corev1.Pod) model.Class {
	classes := map[string]model.Class{"guaranteed": model.Guaranteed, "burstable": model.Burstable, "besteffort": model.BestEffort}
	if text, ok := pod.Annotations[annotationClass]; ok {
		if found, ok := classes[text]; ok {
			return found
		}
		p.add("InvalidPriority", "annotation %s %.64q is not guaranteed, burstable or besteffort: correct it; until then the pod's class of quality of service "+
			"counts", annotationClass, text)
	}
	return classes[strings.ToLower(string(pod.Status.QOSClass))]
}

// bbr returns whether a Pod asks for BBR on its connections. An invalid value counts as unset.
func bbr(p *problems, annotations map[string]string) model.Choice {
	return choice(p, annotations, annotationBBR, "InvalidBBR")
}

// bandwidth returns the limit that an annotation sets, in bits a second, or 0 for no limit. An
// invalid value sets no limit.
func bandwidth(p *problems, annotations map[string]string, name string) uint64 {
	text, ok := annotations[name]
	if !ok {
		return 0
	}
	if quantity.MatchString(text) {
		amount, err := resource.ParseQuantity(text)
		if err == nil && amount.Sign() > 0 && model.ReasonableRate(uint64(amount.Value())) > 0 {
			return uint64(amount.Value())
		}
	}
	p.add("InvalidBandwidth", "annotation %s %.64q is not from 1k to 1P bits a second, such as 10M: correct it; until then there is no limit",
		name, text)
	return 0
}

// ignoreBandwidth reports annotations about rates that a Pod in the host's network namespace has: no
// device tells its packets from those of the node and of other such pods.
func ignoreBandwidth(p *problems, annotations map[string]string) {
	for _, name := range []string{annotationEgress, annotationIngress, annotationClass, annotationBBR} {
		if _, ok := annotations[name]; ok {
			p.add("BandwidthIgnored", "annotation %s is ignored: a pod of the host's network has no device of its own, and so no rate, priority or BBR; "+
				"remove it, or hostNetwork from the pod", name)
		}
	}
}
