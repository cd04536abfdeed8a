// Package source translates Kubernetes objects into the nouns of pkg/model. Both sources, the API server and files,
// use it, so an object means the same wherever it came from: what kube-proxy would make of it.
//
// Translation is pure. Whatever an object holds, it never fails: what cannot be used is left out and becomes a
// model.Problem that says what to do, and the rest of the object works.
package source

import (
	"fmt"

	"fairlead.io/fairlead/pkg/model"
	corev1 "k8s.io/api/core/v1"
)

// labelProxyName hands a Service to another proxy, whatever its value.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// ServiceSelector and SliceSelector are the label selectors of the Services and the EndpointSlices that are this
// proxy's, the same as kube-proxy's. What makes a Service headless is its address, and the controller labels the slices
// by that; the same label on a Service means nothing.
const (
	ServiceSelector = "!" + labelProxyName
	SliceSelector   = "!" + corev1.IsHeadlessService
)

// labelled reports whether an object has a label, whatever its value.
func labelled(labels map[string]string, label string) bool {
	_, found := labels[label]
	return found
}

// maxProblems bounds what one hostile object can add to events and listings.
const maxProblems = 16

// problems collects what had to be ignored in one object.
type problems struct {
	list []model.Problem
	more int
}

// add notes a problem. Values from the object belong in args as %.64q, since they may be long or unprintable.
func (p *problems) add(reason, format string, args ...any) {
	if len(p.list) == maxProblems {
		p.more++
		return
	}
	p.list = append(p.list, model.Problem{Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// all returns the problems, nil if there were none.
func (p *problems) all() []model.Problem {
	if p.more > 0 {
		return append(p.list, model.Problem{
			Reason:  "MoreProblems",
			Message: fmt.Sprintf("%d more values are ignored: correct the ones that are listed to see the rest", p.more),
		})
	}
	return p.list
}

// protocol returns the protocol of that name; none is TCP.
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
