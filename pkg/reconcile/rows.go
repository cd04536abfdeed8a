package reconcile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync/atomic"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// rows writes the rows of services, slots, backends and source ranges, and knows which are free.
type rows struct {
	cfg         *Config
	tables      *Tables
	services    *lb.Indexes
	backends    *lb.Indexes
	extents     *lb.Extents // of slots
	byIndex     []*service  // every service that has a row, by its index
	reserved    []*reserved
	plan        plan
	rangeEpochs rangeEpochs
	stats       *Stats
	synced      bool                    // the sources are complete: what nobody wants may be deleted
	left        map[model.Protocol]bool // what left in this pass

	stopWalk func() // ends a walk of the maps that are about to be replaced
}

func newRows(cfg *Config) *rows {
	return &rows{
		cfg:         cfg,
		tables:      cfg.Tables,
		services:    lb.NewIndexes(uint32(len(cfg.Tables.Services))),
		backends:    lb.NewIndexes(uint32(len(cfg.Tables.Backends))),
		extents:     lb.NewExtents(uint32(len(cfg.Tables.Slots))),
		byIndex:     make([]*service, len(cfg.Tables.Services)),
		reserved:    newReserved(cfg),
		plan:        plan{known: map[maps.Backend]uint32{}},
		rangeEpochs: rangeEpochs{epochs: cfg.RangeEpochs},
		stats:       &Stats{},
		left:        map[model.Protocol]bool{},
	}
}

// grow makes room in the maps. Nobody may write them while they are copied; this goroutine is the
// only writer.
func (r *rows) grow(sizes maps.Sizes) error {
	r.stopWalk()
	tables, err := r.cfg.Grow(r.tables.Sizes().AtLeast(sizes))
	if err != nil {
		return fmt.Errorf("grow the maps: %w", err)
	}
	r.tables = tables
	r.services.Grow(uint32(len(tables.Services)))
	r.byIndex = append(r.byIndex, make([]*service, len(tables.Services)-len(r.byIndex))...)
	r.backends.Grow(uint32(len(tables.Backends)))
	r.extents.Grow(uint32(len(tables.Slots)))
	r.stats.Growths++
	return nil
}

// byService returns the service that a row leads to, or nil for a damaged row found in the map.
func (r *rows) byService(index uint32) *service {
	if int(index) >= len(r.byIndex) {
		return nil
	}
	return r.byIndex[index]
}

// setTables brings a service's backends, slots and settings up to date. New rows are written before
// anything leads to them, and storing the word switches to them. Everything that can fail happens
// before the first write.
func (r *rows) setTables(s *service, w *lb.Service) error {
	if err := r.planBackends(s, w); err != nil {
		return err
	}
	var words [maps.Scopes]maps.Word
	for scope, table := range w.Tables {
		var err error
		if words[scope], err = r.planScope(s, scope, table); err != nil {
			r.dropWords(s, words[:scope])
			r.dropPlan()
			return err
		}
	}
	r.writeBackends(s, w)
	for scope, table := range w.Tables {
		r.setScope(s, scope, words[scope], table)
	}
	r.unmarkBackends(s)
	row := &r.tables.Services[s.index]
	if (row.Flags^w.Flags)&maps.SourceRanges != 0 {
		r.rangeEpochs.begin()
	}
	// Who switches affinity off wants its clients spread anew, also when it is on again.
	if row.AffinitySeconds != 0 && w.AffinitySeconds == 0 {
		row.AffinityEpoch++
	}
	if lb.SettingsOf(row) != w.Settings {
		w.Settings.Put(row)
		r.stats.Writes++
	}
	if s.allowedSum != w.AllowedSum && s.allowedSum != 0 {
		r.left[s.protocol] = true
	}
	s.allowedSum = w.AllowedSum
	return nil
}

// planScope returns the new word of a scope: the current one if the table is unchanged, or one with
// newly allocated slots.
func (r *rows) planScope(s *service, scope int, table []uint32) (maps.Word, error) {
	was := s.words[scope]
	if r.sameTable(s.index, was, table) {
		return was, nil
	}
	var off uint32
	if len(table) > 0 {
		var ok bool
		if off, ok = r.extents.Alloc(uint32(len(table))); !ok {
			need := r.extents.Need(uint32(len(table)))
			if err := r.grow(maps.Sizes{Slots: max(need, 2*uint32(len(r.tables.Slots)))}); err != nil {
				return 0, err
			}
			if off, ok = r.extents.Alloc(uint32(len(table))); !ok {
				return 0, fmt.Errorf("%d slots do not fit into the map of %d slots", len(table), len(r.tables.Slots))
			}
		}
	}
	tag := max(s.words[maps.ScopeAll].Tag(), s.words[maps.ScopeLocal].Tag()) + 1 + uint16(scope)
	if tag <= uint16(scope) { // wrapped: the tags of the two scopes must still differ
		tag = 1 + uint16(scope)
	}
	return maps.MakeWord(off, len(table), tag), nil
}

// dropWords frees the slots of planned words that will not be used.
func (r *rows) dropWords(s *service, words []maps.Word) {
	for scope, word := range words {
		if word != s.words[scope] && word.Len() > 0 {
			r.extents.Free(word.Off(), uint32(word.Len()))
		}
	}
}

// setScope switches one scope of a service to its planned table.
func (r *rows) setScope(s *service, scope int, word maps.Word, table []uint32) {
	was := s.words[scope]
	stored := &r.tables.Services[s.index].Words[scope]
	if word == was {
		if atomic.LoadUint64(stored) != uint64(was) { // the row was damaged
			atomic.StoreUint64(stored, uint64(was))
			r.stats.Writes++
		}
		return
	}
	slots := r.tables.Slots[word.Off() : int(word.Off())+len(table)]
	for i, position := range table {
		atomic.StoreUint64(&slots[i].Value, maps.MakeSlot(r.plan.rows[position], s.index, word.Tag()).Value)
	}
	atomic.StoreUint64(stored, uint64(word))
	s.words[scope] = word
	r.stats.Writes += uint64(len(table)) + 1
	if was.Len() > 0 {
		r.extents.Free(was.Off(), uint32(was.Len()))
	}
}

// sameTable reports whether the slots of a word are exactly those that table would get.
func (r *rows) sameTable(index uint32, word maps.Word, table []uint32) bool {
	if word.Len() != len(table) {
		return false
	}
	slots := r.tables.Slots[word.Off():]
	for i, position := range table {
		if slots[i] != maps.MakeSlot(r.plan.rows[position], index, word.Tag()) {
			return false
		}
	}
	return true
}

func (r *rows) setName(index uint32, text string) {
	var name maps.NameText
	copyText(&name, text)
	if r.tables.Names[index] != name {
		r.tables.Names[index] = name
		r.stats.Writes++
	}
}

// nameText returns the name of a service as stored in the maps. A name that is too long is cut and
// ends in a digest of the whole.
func nameText(id lb.ID) string {
	text := id.String()
	const room = len(maps.NameText{}.Text) - 1
	if len(text) <= room {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf("%s~%s", text[:room-17], hex.EncodeToString(sum[:8]))
}

func copyText(name *maps.NameText, text string) {
	for i := range len(text) {
		name.Text[i] = int8(text[i])
	}
}
