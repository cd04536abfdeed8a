package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/explain"
	"fairlead.io/fairlead/pkg/model"
)

// maxProbes bounds how many turns, or ports, an explanation uses up.
const maxProbes = 1000

// explanation is an Explanation with the problems of the service's object that the agent reports,
// if one answers.
type explanation struct {
	*explain.Explanation
	Problems []model.ObjectProblem `json:"problems,omitempty"`
	// Policies is what policies say about the first packet, for each backend that it may go to.
	Policies []policyVerdict `json:"policies,omitempty"`
}

func newExplainCommand(inv *invocation) *cobra.Command {
	var protocol, device string
	var probes int
	cmd := &cobra.Command{
		Use:   "explain SRC DST:PORT",
		Short: "Explain where a new connection goes, and why",
		Long: `Explain where a new connection goes, and why: which frontend it matches, which service that belongs to, which policy
applies, which backends are eligible, and how one of them is chosen. If no service has the destination, the nearest
frontends are listed.

SRC is the address of a pod on this node, an address of the node, or the word "node" for a process on the node itself.
The line "mode" says where a pod's connection gets its backend: at its socket, or, if the socket programs do not see it,
from its packets at the device of a pod in fairlead's pod network.
The answer comes from the maps in the kernel, read step by step as the programs do, so it needs no agent. The kernel
cannot test-run these programs. With --probe the command connects its own sockets and shows where the programs pointed
them. These count as new connections for affinity and round robin. Nothing is sent to a backend, except for one SYN each
if net.ipv4.tcp_fastopen does not let clients use TCP Fast Open. A probe shows what clients get in the command's own
network namespace and part of the cgroup tree.

If network policies are about a pod of this node at either end, the line "policies" says what becomes of the connection, and a
section at the end what they say for each backend that it may get, up to 8: the verdict in each direction that this node decides
about, the policy and the rule. The agent has the program at the pod's device decide about the first packet, over the live
rows of policies; its own rows of flows, its counts and events are kept apart, so nothing is left behind. What is only
audited is said to be accepted, with the rule that would deny it. Without an agent, the same rows are read from the maps, and
rules have numbers instead of names.

A SRC that this node would answer through a served device is a client outside, which sends packets. For it, the agent
builds the first packet of the flow and lets the device's own programs decide, as they are attached and with the live
tables. Their writes are kept apart: flows, counters, affinity and round robin do not change, and nothing is sent. If the
port matters, give SRC as ADDRESS:PORT; without a port, 40000 is used. --device names the device on which the packet
arrives.

The exit code is 3 if the maps or programs on the connection's way are damaged.`,
		Example: `  fairlead explain node 10.96.0.10:80
  fairlead explain 10.1.0.7 10.96.0.53:53 --protocol udp
  fairlead explain 10.1.0.7 [fd96::10]:443 -o json
  fairlead explain 10.1.0.7 10.1.0.9:8080
  fairlead explain 198.51.100.7:4000 192.0.2.1:30080
  fairlead explain 198.51.100.7 203.0.113.9:443 --device eth0`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			question, err := parseQuestion(args[0], args[1], protocol)
			if err != nil {
				return config.UsageError{Err: err}
			}
			if probes < 0 || probes > maxProbes {
				return config.UsageError{Err: fmt.Errorf("%d probes: make 0 to %d", probes, maxProbes)}
			}
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			trial, err := outsideTrial(cmd.Context(), cfg, args[0], &question, device, probes)
			if err != nil {
				return err
			}
			view, err := askMaps(cmd.Context(), cfg, question, trial)
			if err != nil {
				return err
			}
			if probes > 0 {
				if err := view.AddProbes(probes); err != nil {
					return err
				}
			}
			if err := view.judge(cmd.Context(), cfg, args[0], &question); err != nil {
				return err
			}
			if err := inv.print(view, view.write); err != nil {
				return err
			}
			if len(view.Damage) > 0 {
				return degradedError{view.Damage}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&protocol, "protocol", "tcp", "protocol of the connection (tcp|udp|sctp)")
	cmd.Flags().IntVar(&probes, "probe", 0, "make this many connections and show where they went")
	cmd.Flags().StringVar(&device, "device", "", "device on which the packets of a client outside arrive")
	completeWords(cmd, "protocol", []string{"tcp", "udp", "sctp"})
	return cmd
}

func parseQuestion(src, dst, protocol string) (explain.Question, error) {
	var q explain.Question
	var err error
	if src != "node" {
		source, err := clientOf(src)
		if err != nil {
			return q, err
		}
		q.Client = source.Addr()
	}
	if q.Destination, err = netip.ParseAddrPort(dst); err != nil || q.Destination.Port() == 0 {
		return q, fmt.Errorf("destination %q: write ADDRESS:PORT, such as 10.96.0.10:80 or [fd96::10]:80", dst)
	}
	switch protocol {
	case "tcp":
		q.Protocol = model.TCP
	case "udp":
		q.Protocol = model.UDP
	case "sctp":
		q.Protocol = model.SCTP
	default:
		return q, fmt.Errorf("unknown protocol %q: use tcp, udp or sctp", protocol)
	}
	return q, nil
}

func askMaps(ctx context.Context, cfg *config.Config, q explain.Question, trial *tried) (*explanation, error) {
	var err error
	if q.Self, err = explain.OwnNamespace(); err != nil {
		return nil, err
	}
	var e *explain.Explanation
	outside := trial != nil && !trial.noAgent
	if outside {
		e, err = explain.Outside(mapsDir(cfg), q, trial.source, &trial.Trial)
	} else {
		e, err = explain.Inside(mapsDir(cfg), q)
	}
	if err != nil {
		return nil, pinsError(cfg, err)
	}
	// What no frontend matches is left alone with the programs and without them, which are attached once a Service needs them.
	leftAlone := e.Outcome == explain.LeftAlone && e.Frontend == nil
	if !outside && e.Forwarding != explain.ByPodDevice && !leftAlone {
		links, err := datapath.ReadLinks(filepath.Join(filepath.Dir(mapsDir(cfg)), "links"))
		if err != nil {
			return nil, err
		}
		e.Damage = append(e.Damage, detached(links, q)...)
	}
	if trial != nil && trial.noAgent && e.OfPod {
		e.Notes = append(e.Notes, "No agent answers, so the client is assumed to be a pod of this node.")
	}
	problems, err := problemsByObject(ctx, client(cfg).Problems)
	if err != nil {
		return nil, err
	}
	return &explanation{Explanation: e, Problems: problems[objectOf(e.Service)]}, nil
}

// detached lists the programs on the connection's way that are not attached.
func detached(links []datapath.ProgramStatus, q explain.Question) []string {
	family := model.FamilyOf(q.Destination.Addr())
	needs := []string{fmt.Sprintf("sock_connect%d", family)}
	if q.Protocol == model.UDP {
		needs = append(needs, fmt.Sprintf("sock_sendmsg%d", family))
	}
	var missing []string
	for _, name := range needs {
		if !slices.ContainsFunc(links, func(p datapath.ProgramStatus) bool { return p.Name == name && p.Attached }) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("not attached: %s; until an agent attaches them again, connections go to the address that was dialed",
		strings.Join(missing, ", "))}
}

func (e *explanation) write(w io.Writer) error {
	if err := e.WriteText(w); err != nil {
		return err
	}
	if len(e.Policies) > 0 {
		fmt.Fprintln(w, "\npolicies")
		if err := writeVerdicts(w, e.Policies); err != nil {
			return err
		}
	}
	for _, p := range e.Problems {
		fmt.Fprintf(w, "\nproblem %s: %s\n", p.Reason, p.Message)
	}
	return nil
}
