package observe

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
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
		row("started", "%s", clock(s.Started))
	}
	if text := s.Agent.text(); text != "" {
		row("agent", "%s", text)
	}
	if s.Source != nil {
		row("source", "%s", s.Source.text())
	}
	if s.Mode != "" {
		row("mode", "%s: connections between pods may bypass TCP; fairlead does nothing else on this node", s.Mode)
	} else {
		row("services", "%d, with %d frontends and %d backends", s.Services, s.Frontends, s.Backends)
	}
	if s.ServiceRanges != nil {
		row("ranges", "%s", s.ServiceRanges.text())
	}
	if s.Reconcile != nil {
		row("reconcile", "%s", s.Reconcile.text())
	}
	if s.Reconcile != nil && len(s.Reconcile.Quotas) > 0 {
		row("quotas", "%s", quotaText(s.Reconcile.Quotas))
	}
	if s.Reconcile != nil && s.Reconcile.Verify.Checks > 0 {
		row("verify", "%s", s.Reconcile.Verify.text())
	}
	if s.Mode == "" {
		row("datapath", "%s", s.Datapath.text())
	}
	if a := s.Datapath.Attachment; a != nil {
		row("proof", "%s", a.text())
	}
	if o := s.Datapath.Outside; o != nil {
		row("outside", "%s", o.text())
	}
	if s.Flows != nil && !s.Flows.LastTime.IsZero() {
		row("flows", "%s", s.Flows.text())
	}
	if s.Snat != nil && s.Snat.fullest() != nil {
		row("SNAT ports", "%s", s.Snat.text())
	}
	if s.Ways != nil {
		row("ways", "%s", s.Ways.text())
	}
	if s.PodNetwork != nil {
		row("pod network", "%s", s.PodNetwork.text())
		if s.PodNetwork.BigTCP != nil {
			row("big TCP", "%s", s.PodNetwork.BigTCP.text())
		}
		if s.PodNetwork.Bandwidth != nil {
			row("BandwidthManager", "%s", s.PodNetwork.Bandwidth.text())
		}
		if needed := s.PodNetwork.Needed; len(needed) > 0 {
			row("settings", "%s", strings.Join(needed, ", "))
		}
	}
	if s.Sockmap != nil {
		row("past TCP", "%s", s.Sockmap.text())
	}
	if s.Policies != nil {
		row("policies", "%s", s.Policies.text())
	}
	if s.Fragments.Stored+s.Fragments.Refused > 0 {
		row("fragments", "%s", s.Fragments.text())
	}
	if len(s.Maps) > 0 {
		row("maps", "%s", mapsText(s.Maps))
	}
	if s.Pins != nil && s.Pins.Restored > 0 {
		row("pins", "%s", s.Pins.text())
	}
	if s.OptOut != nil && s.OptOut.Pods+s.OptOut.Waiting+s.OptOut.NotCovered > 0 {
		row("opted out", "%s", s.OptOut.text())
	}
	if err := lines.Flush(); err != nil {
		return err
	}
	s.Datapath.Outside.writeDevices(out)
	if full := inTrouble(s.Maps); len(full) > 0 {
		fmt.Fprintln(out)
		if err := WriteMaps(out, full); err != nil {
			return err
		}
	}
	s.OptOut.writeUncovered(out)
	if len(s.Problems) > 0 {
		fmt.Fprintf(out, "\nobjects with problems:\n")
		for _, p := range s.Problems {
			fmt.Fprintf(out, "  %s: %s: %s\n", printable(p.Object), p.Reason, printable(p.Message))
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

func (s *SourceStatus) text() string {
	words := []string{s.Kind, "synced"}
	if s.Server != "" {
		words[0] += " at " + s.Server
	}
	if s.Server != s.Configured {
		words[0] += " instead of " + s.Configured
	}
	if !s.Synced {
		words[1] = "not synced" + listing(" (missing: ", s.Missing, ")")
	}
	if !s.LastChange.IsZero() {
		words = append(words, "last change "+clock(s.LastChange))
	}
	return strings.Join(words, ", ")
}

func (r *ReconcileState) text() string {
	words := []string{"up to date"}
	if r.Dirty > 0 {
		words[0] = fmt.Sprintf("%d waiting", r.Dirty)
	}
	if !r.LastTime.IsZero() {
		words = append(words, fmt.Sprintf("last pass %s took %s", clock(r.LastTime), round(r.LastDuration)))
	}
	words = append(words, fmt.Sprintf("%d errors", r.Errors))
	return strings.Join(words, ", ")
}

func (v *VerifyState) text() string {
	return fmt.Sprintf("%d checks, last %s, found %d differences, repaired %d", v.Checks, clock(v.LastTime), v.Found, v.Mended)
}

func (d *DatapathStatus) text() string {
	attached, idle := 0, 0
	for _, p := range d.Programs {
		switch {
		case p.Attached:
			attached++
		case p.Idle:
			idle++
		}
	}
	text := fmt.Sprintf("%d of %d programs attached", attached, len(d.Programs)-idle)
	if idle > 0 {
		text = fmt.Sprintf("%d of %d needed programs attached", attached, len(d.Programs)-idle)
	}
	if d.CgroupRoot != "" {
		text += " to " + d.CgroupRoot
	}
	var lacks []string
	for name, have := range d.Features {
		if !have {
			lacks = append(lacks, name)
		}
	}
	slices.Sort(lacks)
	return text + listing(", kernel without ", lacks, "")
}

// inTrouble returns the maps that are nearly full or have evicted rows lately.
func inTrouble(list []MapStatus) (full []MapStatus) {
	for _, m := range list {
		if m.Pressure >= nearlyFull || m.EvictedLately > 0 {
			full = append(full, m)
		}
	}
	return full
}

func mapsText(list []MapStatus) string {
	var memory uint64
	for _, m := range list {
		memory += m.Memory
	}
	text := fmt.Sprintf("%d, %s", len(list), size(memory))
	if n := len(inTrouble(list)); n > 0 {
		text += fmt.Sprintf("; %d nearly full, or evicting rows", n)
	}
	return text + "; \"fairlead map list\" shows all"
}

// WriteMaps writes a table of the maps.
func WriteMaps(w io.Writer, list []MapStatus) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MAP\tTYPE\tENTRIES\tCAPACITY\tUSED\tPUSHED OUT\tMEMORY\tROW\tWRITTEN BY\tREAD BY")
	for _, m := range list {
		entries, used := "-", "-"
		if m.Entries != nil {
			entries, used = fmt.Sprint(*m.Entries), fmt.Sprintf("%.0f%%", 100*m.Pressure)
		}
		evicted := "-"
		if m.Evictions != nil {
			evicted = fmt.Sprint(*m.Evictions)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.Name, m.Type, entries,
			cmp.Or(strings.TrimLeft(fmt.Sprint(m.Capacity), "0"), "-"), used, evicted, size(m.Memory), m.Row, m.WrittenBy, m.ReadBy)
	}
	return table.Flush()
}

// size formats a number of bytes.
func size(n uint64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), 0
	for value >= step && unit < 4 {
		value /= step
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", value, " KMGT"[unit])
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// round rounds a duration to the digits that matter.
func round(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(100 * time.Nanosecond)
}

func listing(before string, list []string, after string) string {
	if len(list) == 0 {
		return ""
	}
	return before + strings.Join(list, ", ") + after
}
