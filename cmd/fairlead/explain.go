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
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
)

// maxProbes bounds how much of a round of turns, or of ports, an explanation takes.
const maxProbes = 1000

// explanation is an Explanation with what the agent, if one answers, has to say about the service's object.
type explanation struct {
	*observe.Explanation
	Problems []observe.Problem `json:"problems,omitempty"`
}

func newExplainCommand(inv *invocation) *cobra.Command {
	var protocol, device string
	var probes int
	cmd := &cobra.Command{
		Use:   "explain SRC DST:PORT",
		Short: "Explain where a new connection goes, and why",
		Long: `Explain where a new connection goes, and why: which frontend it matches, whose that is, which policy holds, which
backends may get it and what decides between them. Where no service has the destination, the nearest ones are listed.

SRC is the address of a pod on this node, an address of the node, or the word "node" for a process of the node itself.
The line "mode" says where a pod's connection is given its backend: at its socket, or, for what no program of sockets
meets, as packets at the device of a pod that has its network from fairlead.
The answer comes from the maps in the kernel, step by step as the programs read them, so it needs no agent. The kernel
cannot run these programs on trial. With --probe the command connects sockets of its own and tells where the programs
pointed them, which counts as new connections for affinity and round robin; nothing is sent to a backend, except for a
SYN each where net.ipv4.tcp_fastopen forbids clients to fast-open. A probe tells of clients in the network namespace and
the part of the cgroup tree that the command runs in.

A SRC that this node would answer by a device that it serves is a client outside, and what it sends are packets. Then
the agent makes the first packet of the flow and has the programs of the device decide about it, as they are attached
and over the live tables. Only what they write is kept apart: neither flows nor counters, affinity or turns change, and
nothing is sent. Give SRC as ADDRESS:PORT where the port matters; without one it is 40000. --device names the device that
the packet comes in by.

The exit code is 3 when the maps or the programs are damaged where the connection passes.`,
		Example: `  fairlead explain node 10.96.0.10:80
  fairlead explain 10.1.0.7 10.96.0.53:53 --protocol udp
  fairlead explain 10.1.0.7 [fd96::10]:443 -o json
  fairlead explain 198.51.100.7:4000 192.0.2.1:30080
  fairlead explain 198.51.100.7 203.0.113.9:443 --device eth0`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			question, err := parseQuestion(args[0], args[1], protocol)
			if err != nil {
				return usageError{err}
			}
			if probes < 0 || probes > maxProbes {
				return usageError{fmt.Errorf("%d probes: make 0 to %d", probes, maxProbes)}
			}
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			trial, err := outsideTrial(cmd.Context(), cfg, args[0], &question, device, probes)
			if err != nil {
				return err
			}
			view, err := explain(cmd.Context(), cfg, question, trial)
			if err != nil {
				return err
			}
			if probes > 0 {
				if err := view.AddProbes(probes); err != nil {
					return err
				}
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
	cmd.Flags().IntVar(&probes, "probe", 0, "how many connections to make and to tell where they went")
	cmd.Flags().StringVar(&device, "device", "", "the device that packets of a client outside come in by")
	completeWords(cmd, "protocol", []string{"tcp", "udp", "sctp"})
	return cmd
}

func parseQuestion(src, dst, protocol string) (observe.Question, error) {
	var q observe.Question
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

func explain(ctx context.Context, cfg *config.Config, q observe.Question, trial *tried) (*explanation, error) {
	var err error
	if q.Self, err = observe.OwnNamespace(); err != nil {
		return nil, err
	}
	var e *observe.Explanation
	outside := trial != nil && !trial.noAgent
	if outside {
		e, err = observe.ExplainOutside(mapsDir(cfg), q, trial.source, &trial.Trial)
	} else {
		e, err = observe.Explain(mapsDir(cfg), q)
	}
	if err != nil {
		return nil, pinsError(cfg, err)
	}
	if !outside && e.Forwarding != observe.ByPodDevice {
		links, err := observe.ReadLinks(filepath.Join(filepath.Dir(mapsDir(cfg)), "links"))
		if err != nil {
			return nil, err
		}
		e.Damage = append(e.Damage, detached(links, q)...)
	}
	if trial != nil && trial.noAgent && e.OfPod {
		e.Notes = append(e.Notes, "No agent answers, and so the client is taken for a pod of this node, which it need not be.")
	}
	problems, err := problemsByObject(ctx, client(cfg).Problems)
	if err != nil {
		return nil, err
	}
	return &explanation{e, problems[objectOf(e.Service)]}, nil
}

// detached says which programs that the connection would meet are not attached.
func detached(links []observe.ProgramStatus, q observe.Question) []string {
	family := model.FamilyOf(q.Destination.Addr())
	needs := []string{fmt.Sprintf("sock_connect%d", family)}
	if q.Protocol == model.UDP {
		needs = append(needs, fmt.Sprintf("sock_sendmsg%d", family))
	}
	var missing []string
	for _, name := range needs {
		if !slices.ContainsFunc(links, func(p observe.ProgramStatus) bool { return p.Name == name && p.Attached }) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("not attached: %s; connections go to the address that is dialled until an agent attaches them again",
		strings.Join(missing, ", "))}
}

func (e *explanation) write(w io.Writer) error {
	if err := e.WriteText(w); err != nil {
		return err
	}
	for _, p := range e.Problems {
		fmt.Fprintf(w, "\nproblem %s: %s\n", p.Reason, p.Message)
	}
	return nil
}
