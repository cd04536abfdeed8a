package source

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"fairlead.io/fairlead/pkg/model"
)

// Kubernetes' own: how many bits a second a Pod may send and get.
const (
	annotationEgress  = "kubernetes.io/egress-bandwidth"
	annotationIngress = "kubernetes.io/ingress-bandwidth"
)

// quantity is what an amount of bits a second looks like. What is longer than any reasonable one could be is not worked out.
var quantity = regexp.MustCompile(`^\+?[0-9]{1,18}(\.[0-9]{0,9})?([kMGTP]|[KMGTP]i|[eE][0-9]{1,2})?$`)

// class returns whose packets a Pod's go before, or after: as it says, or else as Kubernetes classes it.
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

// bbr returns whether a Pod asks for connections with BBR. What cannot be understood asks for nothing.
func bbr(p *problems, annotations map[string]string) model.Choice {
	return choice(p, annotations, annotationBBR, "InvalidBBR")
}

// bandwidth returns how many bits a second an annotation lets a Pod have; 0 for as many as it can, which is also what one may whose
// annotation cannot be understood.
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
