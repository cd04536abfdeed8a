// Package mapstats says how full the pinned maps are, what they evict, and what else they count.
package mapstats

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/phrase"
	"fairlead.io/fairlead/pkg/snapshot"
)

// Pinned is what the maps pinned on a node show.
type Pinned struct {
	*snapshot.Snapshot
	Maps      []Map
	Fragments Fragments
}

// Map is the state of one map. Entries is nil if the rows in use cannot be counted.
type Map struct {
	Name      string  `json:"name"`
	Type      string  `json:"type"`
	Row       string  `json:"row"`
	WrittenBy string  `json:"writtenBy"`
	ReadBy    string  `json:"readBy"`
	Entries   *int    `json:"entries,omitempty"`
	Capacity  uint32  `json:"capacity"`
	Pressure  float64 `json:"pressure"` // entries / capacity
	// Evictions is how many rows the map has ever evicted, computed from how many were made and how
	// many deleted. It is nil if the map evicts nothing. An eviction may be counted some seconds
	// late, but nothing else is ever counted.
	Evictions     *uint64 `json:"evictions,omitempty"`
	EvictedLately uint64  `json:"evictedLately,omitempty"` // evictions in the last minutes; only an agent knows
	// EvictionsEnd is when EvictedLately is zero again, if no more rows are evicted.
	EvictionsEnd time.Time `json:"evictionsEnd,omitzero"`
	Memory       uint64    `json:"memoryBytes"`
	Pin          string    `json:"pin"`
	Schema       string    `json:"schema"`
}

// fill adds the row counts to the status of a map that evicts rows.
func (m *Map) fill(found maps.LruCounts, lately uint64) {
	m.SetEntries(found.Rows)
	m.Evictions, m.EvictedLately = &found.Evicted, lately
}

// SetEntries sets the number of rows in use.
func (m *Map) SetEntries(n int) {
	m.Entries = &n
	m.Pressure = float64(n) / float64(max(1, m.Capacity))
}

// Findings says what it means for clients that a map evicts rows, and what to do.
func (m *Map) Findings(say func(string, ...any)) {
	if m.EvictedLately == 0 || float64(m.EvictedLately) < crowdedOut*float64(m.Capacity) {
		return
	}
	what, ok := map[string]string{
		"ct_pending": "connections from outside may not come about: \"fairlead conntrack list --state new\" shows who begins so many. " +
			"Stop a flood before it reaches this node; if the clients are wanted, raise the option conntrack-max, of which this map is a part, and restart the agent",
		"affinity": "clients of services with session affinity may get another backend: it grows by itself, twofold every 15 seconds, to a 64th of the " +
			"memory; if this goes on, spread the clients over more nodes",
		"frags": "datagrams that come in fragments may be lost: have senders keep to the path's MTU",
	}[m.Name]
	if ok {
		say("Map %s, of %d rows, has pushed out %d in the last minutes: %s.%s", m.Name, m.Capacity, m.EvictedLately, what,
			overBy("it pushes out more", m.EvictionsEnd))
	}
}

// Read opens the maps pinned in dir read-only, takes a Snapshot and the state of every map, and
// closes them again. It shares nothing with other users of the maps. The error wraps what maps.Open
// returns.
func Read(dir string) (pinned *Pinned, err error) {
	m, err := maps.Open(dir, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	s, err := snapshot.Read(m)
	if err != nil {
		return nil, err
	}
	list, err := mapStatuses(m, s, dir)
	if err != nil {
		return nil, err
	}
	fragments, err := readFragments(m.EarlyTally)
	if err != nil {
		return nil, err
	}
	return &Pinned{Snapshot: s, Maps: list, Fragments: fragments}, nil
}

func mapStatuses(m *maps.Maps, s *snapshot.Snapshot, dir string) ([]Map, error) {
	used := s.Entries()
	if err := countPolicies(m, used); err != nil {
		return nil, err
	}
	var list []Map
	for _, info := range m.All() {
		status := Map{
			Name: info.Name, Type: info.Map.Type().String(), Row: info.Row, WrittenBy: info.WrittenBy, ReadBy: info.ReadBy,
			Capacity: info.Map.MaxEntries(), Pin: filepath.Join(dir, info.Name), Schema: filepath.Base(filepath.Dir(dir)),
		}
		if n, ok := used[info.Name]; ok && status.Capacity > 0 {
			status.SetEntries(n)
		}
		if maps.PushesOut(info.Name) {
			found, err := maps.TakeLruCounts(m.LruStats, info.Map, info.Name)
			if err != nil {
				return nil, err
			}
			status.fill(found, 0)
		}
		kernel, err := info.Map.Info()
		if err != nil {
			return nil, fmt.Errorf("inspect map %s: %w", info.Name, err)
		}
		status.Memory, _ = kernel.Memlock()
		list = append(list, status)
	}
	return list, nil
}

// countPolicies adds how many rows the maps of policies have.
func countPolicies(m *maps.Maps, used map[string]int) error {
	written, err := m.CountPolicyRows()
	if err != nil {
		return err
	}
	for _, info := range m.All() {
		if n, ok := written[info.Name]; ok {
			used[info.Name] = n
		} else if n, counts, err := maps.CountRows(info.Map, info.Name); err != nil {
			return err
		} else if counts {
			used[info.Name] = n
		}
	}
	return nil
}

// InTrouble returns the maps that are nearly full or have evicted rows lately.
func InTrouble(list []Map) (full []Map) {
	for _, m := range list {
		// One that evicts without counting it is full most of the time.
		fills := m.Type != ebpf.LRUHash.String() || m.Evictions != nil
		if m.Pressure >= nearlyFull && fills || m.EvictedLately > 0 {
			full = append(full, m)
		}
	}
	return full
}

// Summary returns the line about the maps shown in the status.
func Summary(list []Map) string {
	var memory uint64
	for _, m := range list {
		memory += m.Memory
	}
	text := fmt.Sprintf("%d, %s", len(list), phrase.Bytes(memory))
	if n := len(InTrouble(list)); n > 0 {
		text += fmt.Sprintf("; %d nearly full, or evicting rows", n)
	}
	return text + "; \"fairlead map list\" shows all"
}

// WriteTable writes a table of the maps.
func WriteTable(w io.Writer, list []Map) error {
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
			cmp.Or(strings.TrimLeft(fmt.Sprint(m.Capacity), "0"), "-"), used, evicted, phrase.Bytes(m.Memory), m.Row, m.WrittenBy, m.ReadBy)
	}
	return table.Flush()
}
