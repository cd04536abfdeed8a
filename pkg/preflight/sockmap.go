package preflight

import (
	"fmt"
	"slices"
	"strings"
)

// sockmap tells whether connections may go past TCP, and of whom it is not known beforehand that they bear it.
func (n *Node) sockmap() Line {
	const check = "past TCP"
	if n.Sockmap == nil {
		return Line{check, OK, "everything goes by TCP: --sockmap is false", ""}
	}
	if unfit := n.Sockmap(); unfit != "" {
		return Line{check, Warn, "everything goes by TCP: " + unfit, `"fairlead init --sockmap=true" with the options of the agent, as root, tells whether another kernel is needed`}
	}
	processes, err := n.processes()
	if err != nil {
		return Line{check, Unknown, "the kernel is fit; who splices late is not seen, but " + err.Error(), "run the command on the node"}
	}
	var late []string
	for _, name := range lateReaders() {
		if processes[name] && !slices.Contains(n.Except, name) {
			late = append(late, name)
		}
	}
	if len(late) > 0 {
		return Line{check, Warn, fmt.Sprintf("%s runs, which may splice, or ask how much there is to be read, when something waits past TCP already", strings.Join(late, ", ")),
			"--sockmap-except with " + strings.Join(late, ",") + " in it, unless it does neither as it is configured"}
	}
	return Line{check, OK, "the kernel is fit, and no program is seen that would have to be left out", ""}
}

// lateReaders are programs that are known for it.
func lateReaders() []string { return []string{"haproxy", "nginx"} }
