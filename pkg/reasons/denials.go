package reasons

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// The reasons for which policies drop packets, or would.
const (
	Policy      = "policy"
	PolicyAudit = "policy-audit"
)

// Denial is how often one rule of a policy denied what pods of this node received, or sent.
type Denial struct {
	Rule      uint32 `json:"rule"`
	Direction string `json:"direction"` // "ingress" or "egress", as the pod sees it
	Packets   uint64 `json:"packets"`
	Policy    string `json:"policy,omitempty"` // the rule in words, if an agent says what its number means
}

// ReadDenials reads the counts of denials pinned in dir, the most frequent first. There are none if there
// is no such map.
func ReadDenials(dir string) ([]Denial, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, "policy_denials"), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open map policy_denials: %w", err)
	}
	defer m.Close()
	// In batches rows are read once each, also if others come and go meanwhile.
	var list []Denial
	var cursor ebpf.MapBatchCursor
	keys, counts := make([]bpf.MapsPolicyDenial, m.MaxEntries()), make([]uint64, m.MaxEntries())
	for err == nil {
		var n int
		if n, err = m.BatchLookup(&cursor, keys, counts, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("read map policy_denials: %w", err)
		}
		for i := range n {
			direction := "ingress"
			if bpf.MapsPolicyDirection(keys[i].Direction) == bpf.MapsPolicyDirectionPOLICY_EGRESS {
				direction = "egress"
			}
			list = append(list, Denial{Rule: keys[i].Rule, Direction: direction, Packets: counts[i]})
		}
	}
	slices.SortFunc(list, func(a, b Denial) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Direction, b.Direction))
	})
	return list, nil
}

// DenialRate is how fast a Denial grew.
type DenialRate struct {
	Denial
	PacketsPerSecond float64 `json:"packetsPerSecond"`
}

// DenialRates returns the denials that grew between two readings, the fastest first.
func DenialRates(before, after []Denial, took time.Duration) []DenialRate {
	type key struct {
		rule      uint32
		direction string
	}
	had := map[key]uint64{}
	for i := range before {
		had[key{before[i].Rule, before[i].Direction}] = before[i].Packets
	}
	rates := []DenialRate{}
	for _, d := range after {
		was := had[key{d.Rule, d.Direction}]
		if d.Packets < was { // the rule was changed, or its count evicted
			was = 0
		}
		if d.Packets > was {
			rates = append(rates, DenialRate{d, float64(d.Packets-was) / took.Seconds()})
		}
	}
	slices.SortStableFunc(rates, func(a, b DenialRate) int { return cmp.Compare(b.PacketsPerSecond, a.PacketsPerSecond) })
	return rates
}

// by returns who denied it, in words if they are known.
func (d *Denial) by() string { return cmp.Or(d.Policy, fmt.Sprintf("rule %d", d.Rule)) }

// maxDenials is how many rules WriteDenials and WriteDenialRates list.
const maxDenials = 30

// WriteDenials writes a table of the rules that denied most.
func WriteDenials(w io.Writer, list []Denial) error {
	return writeDenials(w, "PACKETS", len(list), func(at int) (string, *Denial) { return fmt.Sprint(list[at].Packets), &list[at] })
}

// WriteDenialRates writes a table of the rules that deny most now.
func WriteDenialRates(w io.Writer, rates []DenialRate) error {
	return writeDenials(w, "PACKETS/S\tPACKETS", len(rates), func(at int) (string, *Denial) {
		return fmt.Sprintf("%.1f\t%d", rates[at].PacketsPerSecond, rates[at].Packets), &rates[at].Denial
	})
}

// writeDenials writes a table of the first of so many denials, with counts under a head.
func writeDenials(w io.Writer, head string, count int, row func(int) (string, *Denial)) error {
	if count == 0 {
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\n%s\tDIRECTION\tDENIED BY\n", head)
	for at := range min(count, maxDenials) {
		counts, d := row(at)
		fmt.Fprintf(table, "%s\t%s\t%s\n", counts, d.Direction, d.by())
	}
	if more := count - maxDenials; more > 0 {
		fmt.Fprintf(table, "and %d more rules, see -o json\n", more)
	}
	return table.Flush()
}
