package explain

import (
	"bufio"
	"fmt"
	"io"
	"text/tabwriter"
)

// WriteText writes the explanation as text.
func (e *Explanation) WriteText(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "A new %s connection from %s to %s\n\n", e.Protocol, e.Client, e.Destination)
	lines := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(key, value string) {
		if value != "" {
			fmt.Fprintf(lines, "%s\t%s\n", key, value)
		}
	}
	if e.Frontend != nil {
		row("frontend", fmt.Sprintf("%s %s: %s", e.Frontend.Text(), e.Frontend.Kind, e.Matched))
	}
	row("service", e.Service)
	if e.Scope != "" {
		row("policy", fmt.Sprintf("%s: %s", e.Scope, e.Policy))
	}
	row("ranges", e.SourceRange)
	row("affinity", e.Affinity)
	if e.Decides != "" {
		row("algorithm", fmt.Sprintf("%s: %s", e.Algorithm, e.Decides))
	}
	if e.Trial != nil {
		row("programs", e.Trial.programsText())
	}
	if e.Choice != nil {
		row("chosen", e.Choice.text())
	}
	row("outcome", e.outcomeText())
	row("policies", e.Verdict)
	if e.Forwarding != "" {
		row("mode", fmt.Sprintf("%s: %s", e.Forwarding, e.Mode))
	}
	if e.Trial != nil {
		row("rewritten", e.Trial.rewriteText())
		row("way", e.Trial.wayText())
	}
	row("cause", e.Cause)
	row("cure", e.Cure)
	if err := lines.Flush(); err != nil {
		return err
	}
	if err := e.writeTables(out); err != nil {
		return err
	}
	for _, note := range e.Notes {
		fmt.Fprintf(out, "\n%s\n", note)
	}
	for _, damage := range e.Damage {
		fmt.Fprintf(out, "\ndamage: %s\n", damage)
	}
	return out.Flush()
}

func (e *Explanation) outcomeText() string {
	switch e.Outcome {
	case Dropped:
		text := "dropped: " + e.Reason
		if e.Trial != nil && e.Trial.Rejected {
			text += ", and the client gets a TCP reset or an ICMP error"
		}
		return text
	case ToStack:
		return "left to the node's own stack: " + e.Reason
	case Refused:
		return "refused (ECONNREFUSED): " + e.Reason
	case LeftAlone:
		return "left alone, so it goes to the dialed address: " + e.Reason
	}
	return "goes to " + e.Reason
}

func (e *Explanation) writeTables(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(e.Candidates) > 0 {
		fmt.Fprintln(table, "\nBACKEND\tSLOTS\tSHARE")
		for _, c := range e.Candidates {
			fmt.Fprintf(table, "%s\t%d\t%.1f%%\n", c.Address, c.Slots, c.Percent)
		}
	}
	if len(e.Probes) > 0 {
		fmt.Fprintln(table, "\nPROBED\tTIMES")
	}
	for _, p := range e.Probes {
		where := p.Error
		if where == "" {
			where = p.Address.String()
		}
		fmt.Fprintf(table, "%s\t%d\n", where, p.Count)
	}
	if len(e.Nearest) > 0 {
		fmt.Fprintln(table, "\nNEAREST\tKIND\tSERVICE\tHINT")
		for _, n := range e.Nearest {
			fmt.Fprintf(table, "%s/%s\t%s\t%s\t%s\n", n.Address, n.Protocol, n.Kind, n.Service, n.Why)
		}
	}
	return table.Flush()
}

// programsText says where the packet met the programs.
func (t *Trial) programsText() string {
	if t.Device == "" {
		return ""
	}
	return fmt.Sprintf("%s, at %s", t.Device, t.Hook)
}

func (t *Trial) rewriteText() string {
	if t.Outcome != TrialBackend {
		return ""
	}
	return fmt.Sprintf("%s -> %s", t.Source, t.Backend)
}

func (t *Trial) wayText() string {
	switch {
	case t.Outcome != TrialBackend:
		return ""
	case t.Way == "":
		return "the node's own stack finds it"
	case t.NextHop == "":
		return t.Way + ", once the kernel has resolved the next hop's link-layer address"
	}
	return fmt.Sprintf("%s, to %s", t.Way, t.NextHop)
}
