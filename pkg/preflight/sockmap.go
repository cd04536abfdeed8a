package preflight

import (
	"fmt"
	"slices"
	"strings"
)

// sockmap checks whether connections may bypass TCP, and which running programs may not cope with
// that.
func (n *Node) sockmap() Line {
	const check = "acceleration"
	if n.Sockmap == nil {
		return Line{check, OK, "everything uses TCP: --sockmap is false", ""}
	}
	unfit, differences := n.Sockmap()
	if unfit != "" {
		return Line{check, Warn, "everything uses TCP: " + unfit, `run "fairlead init --sockmap=true" as root, with the agent's options, to see whether another kernel is needed`}
	}
	more := unrecognized
	if len(differences) > 0 {
		more = "differences from TCP on this kernel: " + strings.Join(differences, ", ") + "; " + more
	}
	processes, err := n.processes()
	if err != nil {
		return Line{check, Unknown, fmt.Sprintf("the kernel supports it; programs that splice late are not visible: %v; %s", err, more), "run the command on the node"}
	}
	var late []string
	for _, name := range lateReaders() {
		if processes[name] && !slices.Contains(n.Except, name) {
			late = append(late, name)
		}
	}
	if len(late) > 0 {
		return Line{check, Warn, fmt.Sprintf("%s is running, which may splice, or ask how much there is to read, when data already waits past TCP; %s", strings.Join(late, ", "), more),
			"add " + strings.Join(late, ",") + " to --sockmap-except, unless its configuration does neither"}
	}
	return Line{check, OK, "the kernel supports it, and no running program is known to need to be excluded; " + more, ""}
}

// unrecognized names the programs that connections past TCP do not suit, and that are found too late or
// not at all.
const unrecognized = "not recognized are programs that first converse, and then splice, set SO_ZEROCOPY, read with MSG_WAITALL, use FIONREAD, " +
	"or turn to kTLS, blocking reads or, for half a minute, edge-triggered epoll; nor readers that take a short read for an empty socket but read on every event, " +
	"if another thread fetches events or EPOLL_CTL_MOD brings them; nor any told by an epoll within an epoll, io_uring's poll or SIGIO (O_ASYNC)"

// lateReaders returns programs known to read from a socket in ways that miss data waiting past TCP.
func lateReaders() []string { return []string{"haproxy", "nginx"} }
