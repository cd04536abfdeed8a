package observe

import (
	"bufio"
	"fmt"
	"io"
	"text/tabwriter"

	"fairlead.io/fairlead/pkg/phrase"
	"fairlead.io/fairlead/pkg/reconcile"
)

// Verification is the result of a comparison of the maps with the objects.
type Verification struct {
	Repair bool `json:"repair"` // the request asked for repair
	reconcile.Report
	// Structure lists what is structurally wrong with the maps, if no agent could say what should
	// be in them.
	Structure []string `json:"structure,omitempty"`
}

// Findings has a sentence for everything that is still damaged.
func (v *Verification) Findings() []string {
	var list []string
	for _, s := range v.Structure {
		list = append(list, s+".")
	}
	if left := v.Found - v.Mended; left > 0 {
		list = append(list, fmt.Sprintf("%d rows of the maps differ from the objects.", left))
	}
	return list
}

// WriteText writes what an agent found.
func (v *Verification) WriteText(w io.Writer) error {
	out := bufio.NewWriter(w)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(v.Differences) > 0 {
		fmt.Fprintln(table, "KIND\tWHERE\tWANT\tHAVE\tMENDED")
	}
	for _, d := range v.Differences {
		mended := "no"
		if d.Mended {
			mended = "yes"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", d.Kind, d.Where, d.Want, d.Have, mended)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if more := v.Found - len(v.Differences); more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
	if v.Found > 0 {
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, "compared %d services, %d frontends and %d backends in %s: ", v.Services, v.Frontends, v.Backends, phrase.Round(v.Took))
	switch {
	case v.Found == 0:
		fmt.Fprintln(out, "the maps match the objects")
	case v.Repair:
		fmt.Fprintf(out, "%d differences, %d mended\n", v.Found, v.Mended)
	default:
		fmt.Fprintf(out, "%d differences; the agent repairs them within a minute, \"fairlead verify --repair\" now\n", v.Found)
	}
	if v.Pending > 0 {
		fmt.Fprintf(out, "%d objects and rows wait for a retry, see \"fairlead status\"\n", v.Pending)
	}
	return out.Flush()
}

// WriteStructure writes what the maps show without an agent.
func (v *Verification) WriteStructure(w io.Writer) error {
	out := bufio.NewWriter(w)
	for _, s := range v.Structure {
		fmt.Fprintf(out, "%s\n", s)
	}
	verdict := "their structure is sound"
	if n := len(v.Structure); n > 0 {
		verdict = fmt.Sprintf("%d things are wrong with their structure; an agent repairs them when it starts", n)
	}
	fmt.Fprintf(out, "No agent answers, so it is not known what should be in the maps. Of %d services, %d frontends and %d backends in them: %s\n",
		v.Services, v.Frontends, v.Backends, verdict)
	return out.Flush()
}
