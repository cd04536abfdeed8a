package source

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"fairlead.io/fairlead/pkg/model"
)

// annotationPrefix begins the names of fairlead's annotations.
const annotationPrefix = "fairlead.io/"

// Annotations that this package reads.
const (
	annotationAlgorithm = annotationPrefix + "algorithm" // of a Service
	annotationDSR       = annotationPrefix + "dsr"       // of a Service
	annotationWeight    = annotationPrefix + "weight"    // of an EndpointSlice
	annotationSocketLB  = annotationPrefix + "socket-lb" // of a Pod or a Namespace

	annotationAccelerate = annotationPrefix + "accelerate" // of a Pod or a Namespace

	annotationSourceCheck = annotationPrefix + "source-check" // of a Pod
	annotationProxy       = annotationPrefix + "l7-proxy"     // of a Pod

	annotationClass = annotationPrefix + "bandwidth-priority" // of a Pod
	annotationShare = annotationPrefix + "egress-bandwidth"   // of a Namespace or a Node
	annotationBBR   = annotationPrefix + "bbr"                // of a Pod
)

// A Pod's source-check annotation counts only if its Namespace has this label. Anyone who may
// create Pods can set their annotations, but only those who look after the cluster can label
// namespaces.
const (
	labelSourceCheck    = annotationPrefix + "source-check"
	sourceCheckOptional = "optional"
)

// annotationSourceRanges once held a Service's source ranges. Cloud controllers still read it;
// kube-proxy never has.
const annotationSourceRanges = "service.beta.kubernetes.io/load-balancer-source-ranges"

// maxWeight bounds the slot table of a Service.
const maxWeight = 1000

// belongsOn names the kinds of object that an annotation belongs on, or returns "" for an unknown
// annotation.
func belongsOn(annotation string) string {
	switch annotation {
	case annotationAlgorithm, annotationDSR:
		return "a Service"
	case annotationWeight:
		return "an EndpointSlice"
	case annotationSocketLB, annotationAccelerate:
		return "a Pod or a Namespace"
	case annotationSourceCheck, annotationProxy, annotationClass, annotationBBR:
		return "a Pod"
	case annotationShare:
		return "a Namespace or a Node, where it is for all their pods together; a pod's own is " + annotationEgress
	}
	return ""
}

// ours returns a copy of fairlead's annotations, or nil if there are none.
func ours(annotations map[string]string) map[string]string {
	var kept map[string]string
	for name, value := range annotations {
		if !strings.HasPrefix(name, annotationPrefix) {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[name] = value
	}
	return kept
}

// checkOnly reports every fairlead annotation that is not among known, because a typo would
// otherwise go unnoticed.
func checkOnly(p *problems, annotations map[string]string, known ...string) {
	for _, name := range slices.Sorted(maps.Keys(ours(annotations))) {
		switch kind := belongsOn(name); {
		case slices.Contains(known, name):
		case kind != "":
			p.add("MisplacedAnnotation", "annotation %s is ignored: move it to %s", name, kind)
		default:
			p.add("UnknownAnnotation", "annotation %.64q is ignored: correct its name, %s has only %s",
				name, belongsOn(known[0]), strings.Join(known, " and "))
		}
	}
}

// checkMisplaced reports annotations of a Pod or Namespace that belong on other kinds of object. It
// accepts unknown ones, because other features read their own annotations from pods.
func checkMisplaced(p *problems, annotations map[string]string, known ...string) {
	for _, name := range slices.Sorted(maps.Keys(ours(annotations))) {
		if kind := belongsOn(name); kind != "" && !slices.Contains(known, name) {
			p.add("MisplacedAnnotation", "annotation %s is ignored: move it to %s", name, kind)
		}
	}
}

// weight returns the weight that the annotations of an EndpointSlice set.
func weight(p *problems, annotations map[string]string) uint16 {
	text, ok := annotations[annotationWeight]
	if !ok {
		return 1
	}
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err != nil || n > maxWeight {
		p.add("InvalidWeight", "annotation %s %.64q is not a number from 0 to %d: correct it; until then the weight is 1",
			annotationWeight, text, maxWeight)
		return 1
	}
	return uint16(n)
}

// socketLB returns what the annotations of a Pod or Namespace set. An invalid value counts as
// unset.
func socketLB(p *problems, annotations map[string]string) model.SocketLB {
	text, ok := annotations[annotationSocketLB]
	switch {
	case !ok:
		return model.SocketLBUnset
	case text == "on":
		return model.SocketLBOn
	case text == "off":
		return model.SocketLBOff
	}
	p.add("InvalidSocketLB", `annotation %s %.64q is neither "on" nor "off": correct it; until then it counts as not set`,
		annotationSocketLB, text)
	return model.SocketLBUnset
}

// InvalidAccelerate is the reason of the problem of an accelerate annotation that is neither true
// nor false.
const InvalidAccelerate = "InvalidAccelerate"

// accelerate returns whether the annotations of a Pod or Namespace let connections bypass TCP. An
// invalid value counts as unset.
func accelerate(p *problems, annotations map[string]string) model.Choice {
	return choice(p, annotations, annotationAccelerate, InvalidAccelerate)
}

// choice reads an annotation that is true or false. Any other value is reported with the given
// reason.
func choice(p *problems, annotations map[string]string, name, reason string) model.Choice {
	text, ok := annotations[name]
	switch {
	case !ok:
		return model.Unsaid
	case text == "true":
		return model.Yes
	case text == "false":
		return model.No
	}
	p.add(reason, `annotation %s %.64q is neither "true" nor "false": correct it; until then it counts as not set`, name, text)
	return model.Unsaid
}

// unchecked reports whether a Pod asks to send from any source address. An invalid value does not.
func unchecked(p *problems, annotations map[string]string) bool {
	switch text, ok := annotations[annotationSourceCheck]; {
	case !ok || text == "on":
		return false
	case text == "off":
		return true
	default:
		p.add("InvalidSourceCheck", `annotation %s %.64q is neither "on" nor "off": correct it; until then the pod is checked`, annotationSourceCheck, text)
		return false
	}
}
