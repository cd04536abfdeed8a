package observe

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/phrase"
)

// WriteText writes the status as text.
func (s *Status) WriteText(w io.Writer) error {
	out := bufio.NewWriter(w)
	lines := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(key, format string, args ...any) {
		fmt.Fprintf(lines, "%s\t%s\n", key, fmt.Sprintf(format, args...))
	}
	if s.Version != "" {
		row("version", "%s", s.Version)
	}
	if s.Node != "" {
		row("node", "%s", s.Node)
	}
	if !s.Started.IsZero() {
		row("started", "%s", phrase.Clock(s.Started))
	}
	if text := s.Agent.Text(); text != "" {
		row("agent", "%s", text)
	}
	if s.Source != nil {
		row("source", "%s", s.Source.Text())
	}
	if s.Mode != "" {
		row("mode", "%s: connections between pods may bypass TCP; fairlead does nothing else on this node", s.Mode)
	} else {
		row("services", "%d, with %d frontends and %d backends", s.Services, s.Frontends, s.Backends)
	}
	if s.ServiceRanges != nil {
		row("ranges", "%s", s.ServiceRanges.Text())
	}
	if s.Reconcile != nil {
		row("reconcile", "%s", s.Reconcile.Text())
	}
	if s.Reconcile != nil && len(s.Reconcile.Quotas) > 0 {
		row("quotas", "%s", s.Reconcile.QuotaText())
	}
	if s.Reconcile != nil && s.Reconcile.Verify.Checks > 0 {
		row("verify", "%s", s.Reconcile.Verify.Text())
	}
	if s.Mode == "" {
		row("datapath", "%s", s.Datapath.Text())
	}
	if a := s.Datapath.Attachment; a != nil {
		row("proof", "%s", a.Text())
	}
	if o := s.Datapath.Outside; o != nil {
		row("outside", "%s", o.Text())
	}
	if s.Flows != nil && !s.Flows.LastTime.IsZero() {
		row("flows", "%s", s.Flows.Text())
	}
	if s.Snat != nil && s.Snat.Fullest() != nil {
		row("SNAT ports", "%s", s.Snat.Text())
	}
	if s.Routes != nil {
		row("routes", "%s", s.Routes.Text())
	}
	if s.PodNetwork != nil {
		row("pod network", "%s", s.PodNetwork.line())
		if s.PodNetwork.BigTCP != nil {
			row("big TCP", "%s", s.PodNetwork.BigTCP.Text())
		}
		if s.PodNetwork.Bandwidth != nil {
			row("BandwidthManager", "%s", s.PodNetwork.Bandwidth.Text())
		}
		if needed := s.PodNetwork.Needed; len(needed) > 0 {
			row("settings", "%s", strings.Join(needed, ", "))
		}
	}
	if s.Sockmap != nil {
		row("acceleration", "%s", s.Sockmap.Text())
	}
	if s.Enforced != nil {
		row("policies", "%s", s.Enforced.Text())
	}
	if s.Policies != nil {
		row("policies", "%s", s.Policies.Text())
	}
	if s.Fragments.Stored+s.Fragments.Refused > 0 {
		row("fragments", "%s", s.Fragments.Text())
	}
	if len(s.Maps) > 0 {
		row("maps", "%s", mapstats.Summary(s.Maps))
	}
	if s.Pins != nil && s.Pins.Restored > 0 {
		row("pins", "%s", s.Pins.Text())
	}
	if s.OptOut != nil && s.OptOut.Pods+s.OptOut.Waiting+s.OptOut.NotCovered > 0 {
		row("opted out", "%s", s.OptOut.Text())
	}
	if err := lines.Flush(); err != nil {
		return err
	}
	s.Datapath.Outside.WriteDevices(out)
	if full := mapstats.InTrouble(s.Maps); len(full) > 0 {
		fmt.Fprintln(out)
		if err := mapstats.WriteTable(out, full); err != nil {
			return err
		}
	}
	s.OptOut.WriteUncovered(out)
	if len(s.Problems) > 0 {
		fmt.Fprintf(out, "\nobjects with problems:\n")
		for _, p := range s.Problems {
			fmt.Fprintf(out, "  %s: %s: %s\n", phrase.Printable(p.Object), p.Reason, phrase.Printable(p.Message))
		}
	}
	if len(s.Degraded) == 0 {
		fmt.Fprintf(out, "\nhealthy\n")
		return out.Flush()
	}
	fmt.Fprintf(out, "\ndegraded:\n")
	for _, sentence := range s.Degraded {
		fmt.Fprintf(out, "  %s\n", sentence)
	}
	return out.Flush()
}
