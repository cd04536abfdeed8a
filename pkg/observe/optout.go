package observe

import (
	"fmt"
	"io"
)

// OptOutStatus is how many pods have opted out of socket balancing, and which of them cannot be
// identified.
type OptOutStatus struct {
	Pods       int            `json:"pods"`       // pods whose sockets are left alone
	Waiting    int            `json:"waiting"`    // pods that are not set up yet
	NotCovered int            `json:"notCovered"` // pods whose sockets are balanced nevertheless
	Uncovered  []UncoveredPod `json:"uncovered,omitempty"`
}

// UncoveredPod is a pod that has opted out but is balanced nevertheless.
type UncoveredPod struct {
	Pod    string `json:"pod"`
	Why    string `json:"why"`    // why it has opted out
	Reason string `json:"reason"` // why it is not covered
}

func (o *OptOutStatus) text() string {
	text := fmt.Sprintf("%d pods", o.Pods)
	if o.Waiting > 0 {
		text += fmt.Sprintf(", %d waiting to be set up", o.Waiting)
	}
	if o.NotCovered > 0 {
		text += fmt.Sprintf(", %d not covered", o.NotCovered)
	}
	return text
}

func (o *OptOutStatus) writeUncovered(w io.Writer) {
	if o == nil || o.NotCovered == 0 {
		return
	}
	fmt.Fprintf(w, "\nopted out of balancing at the socket, but not covered:\n")
	for _, pod := range o.Uncovered {
		fmt.Fprintf(w, "  %s (%s): %s\n", pod.Pod, pod.Why, pod.Reason)
	}
	if more := o.NotCovered - len(o.Uncovered); more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
}
