// Package source translates Kubernetes objects into the types of pkg/model. Both sources, the API
// server and files, use it, so an object means the same from either: what kube-proxy would make of
// it.
//
// Translation is pure and never fails, whatever an object holds. What cannot be used is left out
// and becomes a model.Problem that says what to do, and the rest of the object works.
package source

import (
	"fmt"

	"fairlead.io/fairlead/pkg/model"
	corev1 "k8s.io/api/core/v1"
)

// labelProxyName hands a Service to another proxy. Its value does not matter.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// ServiceSelector and SliceSelector are the label selectors of the Services and EndpointSlices that
// fairlead serves. They are kube-proxy's. The endpoint controller puts the headless label on
// slices, according to the Service's address; on a Service it means nothing.
const (
	ServiceSelector = "!" + labelProxyName
	SliceSelector   = "!" + corev1.IsHeadlessService
)

// labeled reports whether an object has a label, whatever its value.
func labeled(labels map[string]string, label string) bool {
	_, found := labels[label]
	return found
}

// maxProblems bounds what a hostile object can add to events and listings.
const maxProblems = 16

// problems collects what was ignored in one object.
type problems struct {
	list []model.Problem
	more int
}

// add records a problem. Format values from the object with %.64q, because they may be long or
// unprintable.
func (p *problems) add(reason, format string, args ...any) {
	if len(p.list) == maxProblems {
		p.more++
		return
	}
	p.list = append(p.list, model.Problem{Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// count returns how many problems were recorded, listed or not.
func (p *problems) count() int { return len(p.list) + p.more }

// all returns the problems, or nil if there are none.
func (p *problems) all() []model.Problem {
	if p.more > 0 {
		return append(p.list, model.Problem{
			Reason:  "MoreProblems",
			Message: fmt.Sprintf("%d more values are ignored: correct the ones that are listed to see the rest", p.more),
		})
	}
	return p.list
}

// protocol returns the protocol of that name. The default is TCP.
func protocol(name corev1.Protocol) (model.Protocol, bool) {
	switch name {
	case corev1.ProtocolTCP, "":
		return model.TCP, true
	case corev1.ProtocolUDP:
		return model.UDP, true
	case corev1.ProtocolSCTP:
		return model.SCTP, true
	}
	return 0, false
}

func isPort(n int32) bool { return n > 0 && n <= 65535 }
