package observe

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/maps"
)

// Optout is a row of optout: a pod whose sockets are left alone, and what identifies its processes.
type Optout struct {
	Kind  string       `json:"kind"` // "netns" or "cgroup"
	ID    uint64       `json:"id"`
	Pod   string       `json:"pod"`
	Addrs []netip.Addr `json:"addresses,omitempty"` // empty for a pod in the node's network namespace
	Why   string       `json:"why"`

	Key maps.OptoutKey `json:"-"`
}

// readOptouts returns the rows of optout, by pod.
func readOptouts(m *maps.Maps) ([]Optout, error) {
	rows, err := maps.OptoutRows(m.Optout)
	if err != nil {
		return nil, err
	}
	var list []Optout
	for key, row := range rows {
		_, addrs := maps.OptoutPod(row)
		list = append(list, Optout{
			Kind: optoutKind(key.Kind), ID: key.Id, Pod: textOf(&row.Pod), Addrs: addrs, Why: optoutWhy(row.Why), Key: key,
		})
	}
	slices.SortFunc(list, func(a, b Optout) int {
		return cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

func optoutKind(kind uint32) string {
	switch kind {
	case maps.OptoutNetns:
		return "netns"
	case maps.OptoutCgroup:
		return "cgroup"
	}
	return unknown("kind", kind)
}

func optoutWhy(why uint32) string {
	switch why {
	case maps.OptoutByPod:
		return "annotation of the pod"
	case maps.OptoutByNamespace:
		return "annotation of the namespace"
	case maps.OptoutByRuntime:
		return "runtime"
	case maps.OptoutByMesh:
		return "mesh"
	case maps.OptoutByProxy:
		return "proxy"
	}
	return unknown("why", why)
}

func dumpOptout(w io.Writer, s *Snapshot) {
	fmt.Fprintln(w, "KIND\tID\tPOD\tADDRESSES\tWHY")
	for i := range s.Optouts {
		o := &s.Optouts[i]
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", o.Kind, o.ID, o.Pod, cmp.Or(joined(o.Addrs), "-"), o.Why)
	}
}

func joined(addrs []netip.Addr) string {
	texts := make([]string, 0, len(addrs))
	for _, addr := range addrs {
		texts = append(texts, addr.String())
	}
	return strings.Join(texts, ",")
}

// optedOut returns the row by which the client's sockets are left alone, or nil. Processes in the
// node's network namespace differ only by cgroup, which the question does not include; a note says
// so then.
func (x *explainer) optedOut() *Optout {
	unnamed := 0
	for i := range x.optouts {
		o := &x.optouts[i]
		switch {
		case x.cookie != 0 && o.Key == maps.OptoutKey{Id: x.cookie, Kind: maps.OptoutNetns}:
			return o
		case x.inNode() && len(o.Addrs) == 0:
			unnamed++
		case !x.inNode() && slices.Contains(o.Addrs, x.Client):
			return o
		}
	}
	if unnamed > 0 {
		x.e.Notes = append(x.e.Notes, fmt.Sprintf("%d pods in the node's network namespace have opted out of socket balancing: "+
			"what they dial is left alone. \"fairlead map dump optout\" names them.", unnamed))
	}
	return nil
}

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
