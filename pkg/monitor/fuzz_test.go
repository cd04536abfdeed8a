package monitor

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"unicode"

	"fairlead.io/fairlead/pkg/maps"
)

// Whatever a record of the ring buffer contains, it is refused by its length, or it is an event that
// is one printable line, that filters can be asked about, and that survives the way to a monitor.
func FuzzRecord(f *testing.F) {
	size := binary.Size(maps.Event{})
	f.Add(make([]byte, size))
	f.Add(bytes.Repeat([]byte{0xff}, size))
	f.Add(bytes.Repeat([]byte{6, 1}, size))
	f.Add([]byte{1})
	words, err := NewTranslator(f.TempDir(), Names{func(netip.Addr) string { return "" }, func(uint32) string { return "" }})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var record maps.Event
		if err := maps.DecodeEvent(raw, &record); err != nil {
			if len(raw) >= size {
				t.Error(err)
			}
			return
		}
		if len(raw) < size {
			t.Errorf("a record of %d bytes is taken", len(raw))
		}
		event := words.Event(&record)
		var b strings.Builder
		if err := event.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		if line := strings.TrimSuffix(b.String(), "\n"); strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q", line)
		}
		filter := Filter{Sample: 1}
		if !filter.Passes(&event) {
			t.Errorf("a filter for everything refuses %+v", event)
		}
		text, err := json.Marshal(&event)
		if err != nil {
			t.Fatalf("%+v: %v", event, err)
		}
		var again Event
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if other, err := json.Marshal(&again); err != nil || !bytes.Equal(text, other) {
			t.Errorf("%s became %s, %v", text, other, err)
		}
	})
}
