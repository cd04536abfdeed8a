package reasons

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/phrase"
)

// Drop is what one hook counted for one reason: packets or calls that were stopped, or passed on
// in a degraded way.
type Drop struct {
	Hook    string `json:"hook"`
	Reason  string `json:"reason"`
	Stops   bool   `json:"stops"` // false if it was carried on
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

func (d *Drop) effect() string { return (&Reason{Stops: d.Stops}).Effect() }

// Drops returns the counters of reasons other than "none", including those that are zero, by
// hook, the most frequent first. A reason without a description, which is newer than this command,
// counts as a drop.
func Drops(counters []Counter) []Drop {
	carriesOn := map[string]bool{}
	for _, r := range All() {
		carriesOn[r.Word] = !r.Stops
	}
	list := []Drop{}
	for _, c := range counters {
		if c.Reason != "none" {
			list = append(list, Drop{Hook: c.Hook, Reason: c.Reason, Stops: !carriesOn[c.Reason], Packets: c.Packets, Bytes: c.Bytes})
		}
	}
	slices.SortStableFunc(list, func(a, b Drop) int {
		return cmp.Or(cmp.Compare(a.Hook, b.Hook), cmp.Compare(b.Packets, a.Packets))
	})
	return list
}

// ReadDrops reads the counters pinned in dir. The error wraps fs.ErrNotExist if there are none.
func ReadDrops(dir string) ([]Drop, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, "counters"), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("open map counters: %w", err)
	}
	defer m.Close()
	counters, err := ReadCounters(m)
	if err != nil {
		return nil, err
	}
	return Drops(counters), nil
}

// Seen returns the drops that are not zero.
func Seen(list []Drop) []Drop {
	return slices.DeleteFunc(slices.Clone(list), func(d Drop) bool { return d.Packets == 0 })
}

// WriteDrops writes a table of the drops.
func WriteDrops(w io.Writer, list []Drop) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "nothing was dropped")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "HOOK\tREASON\tEFFECT\tPACKETS\tBYTES")
	for i := range list {
		d := &list[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\n", d.Hook, d.Reason, d.effect(), d.Packets, d.Bytes)
	}
	return table.Flush()
}

// DropRate is how fast a Drop grew.
type DropRate struct {
	Drop
	PacketsPerSecond float64 `json:"packetsPerSecond"`
	BytesPerSecond   float64 `json:"bytesPerSecond"`
}

// DropRates returns the drops that grew between two readings. Both have the same counters, in any
// order.
func DropRates(before, after []Drop, took time.Duration) []DropRate {
	type pair struct{ hook, reason string }
	had := map[pair]Drop{}
	for _, d := range before {
		had[pair{d.Hook, d.Reason}] = d
	}
	rates := []DropRate{}
	for _, d := range after {
		was := had[pair{d.Hook, d.Reason}]
		if d.Packets < was.Packets || d.Bytes < was.Bytes { // the maps were recreated
			was = Drop{}
		}
		if d.Packets > was.Packets {
			rates = append(rates, DropRate{
				d, float64(d.Packets-was.Packets) / took.Seconds(), float64(d.Bytes-was.Bytes) / took.Seconds(),
			})
		}
	}
	return rates
}

// WriteDropRates writes a table of the rates below the time of the reading.
func WriteDropRates(w io.Writer, at time.Time, rates []DropRate) error {
	fmt.Fprintf(w, "%s\n", phrase.Clock(at))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "HOOK\tREASON\tEFFECT\tPACKETS/S\tBYTES/S\tPACKETS\tBYTES")
	for i := range rates {
		r := &rates[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%.1f\t%.1f\t%d\t%d\n", r.Hook, r.Reason, r.effect(), r.PacketsPerSecond, r.BytesPerSecond,
			r.Packets, r.Bytes)
	}
	return table.Flush()
}
