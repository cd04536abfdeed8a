package reconcile

import (
	"fmt"
	"sync/atomic"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// compareTables compares all rows of one service except its frontends.
func (v *verifier) compareTables(c *check, u unit, s *service, w *lb.Service) {
	row := &v.tables.Services[s.index]
	if have := lb.SettingsOf(row); have != w.Settings {
		c.differ(u, "service", w.ID.String(), w.Settings.Text(), have.Text())
	}
	if text := nameText(w.ID); !named(&v.tables.Names[s.index], text) {
		c.differ(u, "name", w.ID.String(), text, fmt.Sprintf("%q", textOf(&v.tables.Names[s.index])))
	}
	if !v.rowsOf(s, w) {
		c.differ(u, "backend", w.ID.String(), fmt.Sprintf("%d backends", len(w.Backends)), fmt.Sprintf("%d rows", len(s.backends)))
		return
	}
	for i, index := range v.compare.rows {
		if index == noRow {
			continue
		}
		want, have := w.Backends[i], v.tables.Backends[index]
		want.Owner = maps.MakeOwner(s.index, v.compare.scopes[i])
		if have != want {
			c.differ(u, "backend", fmt.Sprintf("%s, row %d", w.ID, index), backendText(want), backendText(have))
		}
	}
	for scope := range w.Tables {
		v.compareScope(c, u, s, w, scope)
	}
}

// rowsOf finds the row of every backend that the service wants. It returns false if the service has
// a different number of rows.
func (v *verifier) rowsOf(s *service, w *lb.Service) bool {
	b := &v.compare
	b.rows, b.scopes = b.rows[:0], append(b.scopes[:0], make([]uint8, len(w.Backends))...)
	for scope, table := range w.Tables {
		for _, position := range table {
			b.scopes[position] |= 1 << scope
		}
	}
	left := s.backends // in the order of the wanted backends
	for i := range w.Backends {
		if b.scopes[i] == 0 { // weight 0
			b.rows = append(b.rows, noRow)
			continue
		}
		if len(left) == 0 {
			return false
		}
		b.rows, left = append(b.rows, left[0]), left[1:]
	}
	return len(left) == 0
}

func (v *verifier) compareScope(c *check, u unit, s *service, w *lb.Service, scope int) {
	word, table := s.words[scope], w.Tables[scope]
	have := maps.Word(atomic.LoadUint64(&v.tables.Services[s.index].Words[scope]))
	if have != word || word.Len() != len(table) {
		want := word
		if word.Len() != len(table) {
			want = maps.MakeWord(word.Off(), len(table), word.Tag())
		}
		c.differ(u, "word", scopeText(w.ID, scope), wordText(want), wordText(have))
	}
	if word.Len() != len(table) {
		return
	}
	bad, first := 0, 0
	slots := v.tables.Slots[word.Off():]
	for i, position := range table {
		want := maps.MakeSlot(v.compare.rows[position], s.index, word.Tag()).Value
		if atomic.LoadUint64(&slots[i].Value) == want {
			continue
		}
		if bad++; bad == 1 {
			first = i
		}
	}
	if bad > 0 {
		want := maps.MakeSlot(v.compare.rows[table[first]], s.index, word.Tag())
		c.differ(u, "slots", scopeText(w.ID, scope), fmt.Sprintf("slot %d: %s", int(word.Off())+first, slotText(want)),
			fmt.Sprintf("%s; %d of %d slots differ", slotText(slots[first]), bad, len(table)))
	}
}

// compareFrontends compares the service's claims with the frontends it wants, and the rows it owns
// with the map.
func (v *verifier) compareFrontends(c *check, u unit, s *service, w *lb.Service) {
	bindFrontends(w, s.index)
	claimed := s.frontends // in the order of the wanted frontends, without the shadowed ones
	for _, f := range w.Frontends {
		state := v.frontends.keys[f.Key]
		if len(claimed) > 0 && claimed[0] == f.Key {
			claimed = claimed[1:]
			switch {
			case state.owner.service == nil:
				c.differ(u, "frontend", frontendText(f.Key), "claimed by "+w.ID.String(), "claimed by nobody")
			case state.owner.service == s:
				v.compareRow(c, s.object.key, f.Key)
			}
			continue
		}
		if f.Kind != maps.HostPort {
			c.differ(u, "frontend", frontendText(f.Key), "claimed by "+w.ID.String(), "not claimed by it")
		}
	}
	for _, key := range claimed {
		c.differ(u, "frontend", frontendText(key), "not claimed by "+w.ID.String(), "claimed by it")
	}
}

// named reports whether a row of names holds exactly text.
func named(name *maps.NameText, text string) bool {
	for i, c := range name.Text {
		if i < len(text) && byte(c) != text[i] || i >= len(text) && c != 0 {
			return false
		}
	}
	return true
}

func frontendText(key maps.SvcKey) string {
	return fmt.Sprintf("%v/%v", maps.AddrPort(key), model.Protocol(key.Proto))
}

func scopeText(id lb.ID, scope int) string {
	return fmt.Sprintf("%s, scope %s", id, [maps.Scopes]string{"all", "local"}[scope])
}

func wordText(word maps.Word) string {
	return fmt.Sprintf("%d slots starting at %d, tag %d", word.Len(), word.Off(), word.Tag())
}

func slotText(slot maps.Slot) string {
	return fmt.Sprintf("backend %d of service %d, tag %d", maps.SlotBackend(slot), maps.SlotOwner(slot), maps.SlotTag(slot))
}

func backendText(row maps.Backend) string {
	text := fmt.Sprintf("%s/%s of service %d, scopes %#x", maps.BackendAddrPort(row), model.Protocol(row.Proto),
		maps.BackendService(row), maps.BackendScopes(row))
	if row.Flags != 0 {
		text += fmt.Sprintf(", flags %#x", row.Flags)
	}
	return text
}
