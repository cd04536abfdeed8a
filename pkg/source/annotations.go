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

// Annotations that this package reads; annotationKinds says of which objects.
const (
	annotationAlgorithm   = annotationPrefix + "algorithm"
	annotationDSR         = annotationPrefix + "dsr"
	annotationWeight      = annotationPrefix + "weight"
	annotationSocketLB    = annotationPrefix + "socket-lb"
	annotationAccelerate  = annotationPrefix + "accelerate"
	annotationSourceCheck = annotationPrefix + "source-check"
	annotationProxy       = annotationPrefix + "l7-proxy"
	annotationClass       = annotationPrefix + "bandwidth-priority"
	annotationShare       = annotationPrefix + "egress-bandwidth"
	annotationBBR         = annotationPrefix + "bbr"
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

// annotationKinds has a row for every annotation of fairlead: the kinds of object that it belongs on.
func annotationKinds() map[string][]string {
	return map[string][]string{
		annotationAlgorithm:   {kindService},
		annotationDSR:         {kindService},
		annotationWeight:      {kindSlice},
		annotationSocketLB:    {kindPod, kindNamespace},
		annotationAccelerate:  {kindPod, kindNamespace},
		annotationSourceCheck: {kindPod},
		annotationProxy:       {kindPod},
		annotationClass:       {kindPod},
		annotationBBR:         {kindPod},
		annotationShare:       {kindNamespace, kindNode},
	}
}

// The kinds of object that may have annotations, as a sentence calls them.
const (
	kindService   = "a Service"
	kindSlice     = "an EndpointSlice"
	kindPod       = "a Pod"
	kindNamespace = "a Namespace"
	kindNode      = "a Node"
)

// belongsOn names the kinds of object that an annotation belongs on, or returns "" for an unknown
// annotation.
func belongsOn(annotation string) string {
	kinds := strings.Join(annotationKinds()[annotation], " or ")
	if annotation == annotationShare {
		kinds += ", where it is for all their pods together; a pod's own is " + annotationEgress
	}
	return kinds
}

// annotationsOf returns the sorted names of the annotations that belong on a kind of object.
func annotationsOf(kind string) (names []string) {
	for name, kinds := range annotationKinds() {
		if slices.Contains(kinds, kind) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
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

// checkOnly reports every fairlead annotation that does not belong on a kind of object, because a typo would
// otherwise go unnoticed.
func checkOnly(p *problems, annotations map[string]string, kind string) {
	has := ours(annotations)
	if has == nil {
		return
	}
	known := annotationsOf(kind)
	for _, name := range slices.Sorted(maps.Keys(has)) {
		switch right := belongsOn(name); {
		case slices.Contains(known, name):
		case right != "":
			p.add("MisplacedAnnotation", "annotation %s is ignored: move it to %s", name, right)
		default:
			p.add("UnknownAnnotation", "annotation %.64q is ignored: correct its name, %s has only %s",
				name, kind, strings.Join(known, " and "))
		}
	}
}

// checkMisplaced reports annotations of a Pod or Namespace that belong on other kinds of object. It
// accepts unknown ones, because other features read their own annotations from pods.
func checkMisplaced(p *problems, annotations map[string]string, kind string) {
	has := ours(annotations)
	if has == nil {
		return
	}
	known := annotationsOf(kind)
	for _, name := range slices.Sorted(maps.Keys(has)) {
		if right := belongsOn(name); right != "" && !slices.Contains(known, name) {
			p.add("MisplacedAnnotation", "annotation %s is ignored: move it to %s", name, right)
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
