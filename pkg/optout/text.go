package optout

import (
	"fmt"
	"io"
)

// Text returns the line shown in the status of the node.
func (s *Status) Text() string {
	text := fmt.Sprintf("%d pods", s.Pods)
	if s.Waiting > 0 {
		text += fmt.Sprintf(", %d waiting to be set up", s.Waiting)
	}
	if s.NotCovered > 0 {
		text += fmt.Sprintf(", %d not covered", s.NotCovered)
	}
	return text
}

// WriteUncovered writes which pods are balanced although they have opted out.
func (s *Status) WriteUncovered(w io.Writer) {
	if s == nil || s.NotCovered == 0 {
		return
	}
	fmt.Fprintf(w, "\nopted out of balancing at the socket, but not covered:\n")
	for _, pod := range s.Uncovered {
		fmt.Fprintf(w, "  %s (%s): %s\n", pod.Pod, pod.Why, pod.Reason)
	}
	if more := s.NotCovered - len(s.Uncovered); more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
}
