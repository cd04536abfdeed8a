package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/policies"
)

func newPolicyCommand(inv *invocation) *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "List the policies that select pods of this node",
		Long: `List the NetworkPolicies and ClusterNetworkPolicies that select pods of this node, in the order in which they decide, with the
number of these pods and what is wrong with the policies. Before the name of a ClusterNetworkPolicy stands its tier.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			found, err := client(cfg).Policies(cmd.Context())
			if err != nil {
				return err
			}
			return inv.print(found, func(w io.Writer) error { return writePolicies(w, &found) })
		},
	}
	get := &cobra.Command{
		Use:   "get NAME",
		Short: "Show what policies say about a pod, or what a policy says",
		Long: `Show what policies say about a pod of this node: which select it, who may talk to it, and what it may talk to. Or show what a
policy says, and which pods of this node it selects. NAME is NAMESPACE/NAME of a pod or a NetworkPolicy, or the name of a
ClusterNetworkPolicy, before which its tier may stand. What has that name is shown, if it is several things all of them.

Rules are in the order in which they decide: the first that matches does. One with the action Pass leaves the decision to
NetworkPolicies and to the tier Baseline. Positions of rules count from 1.`,
		Example: `  fairlead policy get shop/web-0
  fairlead policy get shop/deny-all
  fairlead policy get admin/isolate-tenants`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			found, err := client(cfg).Policy(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return inv.print(found, func(w io.Writer) error { return writeFound(w, &found) })
		},
	}
	return noun("policy", "Ask what policies say about pods of this node", list, get, newPolicyExplainCommand(inv), newPolicyAuditCommand(inv))
}

func newPolicyExplainCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "explain FROM TO [PORT[/PROTOCOL]]",
		Short: "Explain what policies say about two addresses, and why",
		Long: `Explain what policies say about what FROM sends to TO: whether this node accepts it, in each direction that this node decides
about, and which rule of which policy says so. FROM and TO are addresses, NAMESPACE/NAME of pods, or the word "node". If
they have addresses of both families, there is an answer for each. Without a port, what holds for which ports is shown.
PROTOCOL is tcp, udp or sctp, tcp if it is left out; "icmp" in the place of both stands for what has no ports.

A node decides about what its own pods send and receive. What pods of other nodes send and receive, their nodes decide,
and both have to accept a packet. Policies are about pods: for the address of a Service, ask about its backends, or use
"fairlead explain", which finds them.

The answer is about the first packet of a flow, from the rules that the agent has written to the maps.`,
		Example: `  fairlead policy explain shop/client-7 shop/web-0 8080
  fairlead policy explain 10.1.0.7 10.2.0.3 53/udp
  fairlead policy explain node shop/web-0`,
		Args: cobra.RangeArgs(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			ports, err := policies.ParsePorts(strings.Join(args[2:], ""))
			if err != nil {
				return config.UsageError{Err: err}
			}
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			answers, err := client(cfg).ExplainPolicies(cmd.Context(), policies.Question{From: args[0], To: args[1], Ports: ports})
			if err != nil {
				return err
			}
			return inv.print(answers, func(w io.Writer) error { return writeAnswers(w, answers) })
		},
	}
}

func writePolicies(w io.Writer, found *policies.Listing) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(found.Policies) > 0 {
		fmt.Fprintln(table, "POLICY\tDIRECTIONS\tRULES\tPODS\tPROBLEMS")
	}
	for _, p := range found.Policies {
		var reasons []string
		for _, problem := range p.Problems {
			reasons = append(reasons, problem.Reason)
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\n", p.Policy, joined(p.Directions), p.Rules, p.Pods, joined(reasons))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(found.Policies) == 0 {
		fmt.Fprintln(w, "no policy selects a pod of this node")
	}
	if found.Others > 0 {
		fmt.Fprintf(w, "%d more policies select none\n", found.Others)
	}
	return writeLines(w, found.Notes)
}

func writeLines(w io.Writer, lines []string) error {
	for _, line := range lines {
		if _, err := fmt.Fprintf(w, "%s\n", line); err != nil {
			return err
		}
	}
	return nil
}

func writeFound(w io.Writer, found *policies.Found) error {
	for i := range found.Pods {
		pod := &found.Pods[i]
		fmt.Fprintf(w, "pod %s %v\n", pod.Pod, pod.Addresses)
		fmt.Fprintf(w, "  selected by: %s\n", joinedWords(pod.Policies))
		if pod.Refused != "" {
			fmt.Fprintf(w, "  everything is denied: %s\n", pod.Refused)
		}
		writeDirection(w, "ingress, who may talk to it:", "from", &pod.Ingress)
		writeDirection(w, "egress, what it may talk to:", "to", &pod.Egress)
	}
	for i := range found.Policies {
		p := &found.Policies[i]
		fmt.Fprintf(w, "%s\n  is about %s, here %d: %s\n", p.Policy, p.Selects, p.Pods, namesOf(p))
		for _, r := range p.RuleList {
			fmt.Fprintf(w, "  %s rule %d%s: %s\n", r.Direction, r.Rule, labelOf(&r), ruleText(&r, map[string]string{"ingress": "from", "egress": "to"}[r.Direction]))
		}
		for _, problem := range p.Problems {
			fmt.Fprintf(w, "  problem %s: %s\n", problem.Reason, problem.Message)
		}
	}
	return nil
}

func namesOf(p *policies.PolicyView) string {
	names := make([]string, 0, len(p.Names))
	for _, name := range p.Names {
		names = append(names, name.String())
	}
	return joinedWords(names)
}

func writeDirection(w io.Writer, title, preposition string, d *policies.DirectionView) {
	fmt.Fprintf(w, "  %s\n", title)
	for i := range d.Rules {
		r := &d.Rules[i]
		fmt.Fprintf(w, "    %s (%s rule %d%s)\n", ruleText(r, preposition), r.Policy, r.Rule, labelOf(r))
	}
	fmt.Fprintf(w, "    all else is %s\n", d.Else)
}

func labelOf(r *policies.RuleView) string {
	if r.Label == "" {
		return ""
	}
	return fmt.Sprintf(" %q", r.Label)
}

func ruleText(r *policies.RuleView, preposition string) string {
	return fmt.Sprintf("%s %s: %s", r.Action, preposition+" "+joinedWords(r.Peers), joinedWords(r.Ports))
}

// fewWords is how many alternatives are shown before the rest is only counted.
const fewWords = 8

func joinedWords(list []string) string {
	switch {
	case len(list) == 0:
		return "nothing"
	case len(list) > fewWords:
		return fmt.Sprintf("%s, and %d more (-o json)", strings.Join(list[:fewWords], "; "), len(list)-fewWords)
	}
	return strings.Join(list, "; ")
}

func writeAnswers(w io.Writer, answers []policies.Answer) error {
	for i := range answers {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := writeAnswer(w, &answers[i], nil); err != nil {
			return err
		}
	}
	return nil
}

// writeAnswer writes an answer, with more lines before its notes.
func writeAnswer(w io.Writer, a *policies.Answer, more []string) error {
	ports := ""
	if a.Ports != "" {
		ports = ", " + a.Ports
	}
	fmt.Fprintf(w, "from %s (%s)\nto   %s (%s)%s\n%s\n", a.From.Address, a.From.Where, a.To.Address, a.To.Where, ports, a.Outcome)
	for _, j := range a.Judgments {
		for _, s := range j.Spans {
			verdict := policies.Denied
			if s.Accepted {
				verdict = policies.Accepted
			}
			fmt.Fprintf(w, "  %s of %s, %s: %s (%s)\n", j.Direction, judgedPod(a, &j), s.Ports, verdict, s.By)
		}
	}
	return writeLines(w, append(more, a.Notes...))
}

// judgedPod names a pod, by its address if only that is known.
func judgedPod(a *policies.Answer, j *policies.Judgment) string {
	switch {
	case j.Pod.Name != "":
		return j.Pod.String()
	case j.Direction == "egress":
		return a.From.Address.String()
	}
	return a.To.Address.String()
}
