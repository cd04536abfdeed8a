package source

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"fairlead.io/fairlead/pkg/model"
)

// annotationPrefix marks the annotations that are ours.
const annotationPrefix = "fairlead.io/"

// The annotations that translation itself reads.
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

// The label of a Namespace whose Pods may have that annotation. Whoever may create Pods in a namespace writes their annotations;
// labelling it is for whoever looks after the cluster.
const (
	labelSourceCheck    = annotationPrefix + "source-check"
	sourceCheckOptional = "optional"
)

// annotationSourceRanges is how ranges were once written. Cloud controllers still read it, kube-proxy never has.
const annotationSourceRanges = "service.beta.kubernetes.io/load-balancer-source-ranges"

// maxWeight keeps the slot table of one Service within reason.
const maxWeight = 1000

// belongsOn names the kind of object that an annotation is read from; "" for one that is not read here.
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

// ours returns a copy of the annotations with our prefix, nil if there are none.
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

// checkOnly reports every annotation of ours that is not one that this kind of object has: a typo would otherwise go
// unnoticed.
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

// checkMisplaced reports annotations of a Pod or a Namespace that belong on another kind of object than those known. It leaves
// those alone that nobody here knows: features of pods read their own.
func checkMisplaced(p *problems, annotations map[string]string, known ...string) {
	for _, name := range slices.Sorted(maps.Keys(ours(annotations))) {
		if kind := belongsOn(name); kind != "" && !slices.Contains(known, name) {
			p.add("MisplacedAnnotation", "annotation %s is ignored: move it to %s", name, kind)
		}
	}
}

// weight returns the weight that a slice's annotations ask for.
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

// socketLB returns what the annotations of a Pod or a Namespace ask for. What cannot be understood asks for nothing.
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

// InvalidAccelerate is the reason of the problem of an annotation that is to say whether connections may go past TCP, and does not.
const InvalidAccelerate = "InvalidAccelerate"

// accelerate returns what the annotations of a Pod or a Namespace say to whether connections may go past TCP. What cannot be understood
// says nothing.
func accelerate(p *problems, annotations map[string]string) model.Choice {
	return choice(p, annotations, annotationAccelerate, InvalidAccelerate)
}

// choice reads an annotation that is true or false. Anything else is a problem, with that reason.
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

// unchecked reports whether a Pod asks to send under whatever address it likes. What cannot be understood does not.
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
