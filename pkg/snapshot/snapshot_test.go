package snapshot

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/tables"
)

func TestSnapshotBackends(t *testing.T) {
	l := tables.NewLayout()
	for _, w := range tables.Shop() {
		l.Add(w)
	}
	l.Backend(0, "10.1.0.99:1") // freed: no slot leads to it
	s := take(t, l)
	users := func(address string) (names []string) {
		for _, b := range s.Backends {
			if b.Address.String() == address {
				names = append(names, b.Service)
			}
		}
		return names
	}
	if diff := cmp.Diff([]string{"shop/web:http/tcp4", "shop/weighted/tcp4"}, users("10.1.0.1:8080")); diff != "" {
		t.Error(diff)
	}
	if got := users("10.1.0.99:1"); len(got) != 1 || got[0] != "" {
		t.Errorf("a freed backend is used by %q", got)
	}
	if services, frontends, backends := s.Counts(); services != 5 || frontends != 7 || backends != 7 {
		t.Errorf("counts: %d services, %d frontends, %d backends", services, frontends, backends)
	}
}

func TestNameOf(t *testing.T) {
	for text, want := range map[string]string{"shop/web": "shop/web", "\x1b[2Jx": `"\x1b[2Jx"`, "\xff": `"\xff"`, "": ""} {
		var name maps.NameText
		for i := range len(text) {
			name.Text[i] = int8(text[i])
		}
		if got := NameOf(&name); got != want {
			t.Errorf("NameOf(%q) = %s, want %s", text, got, want)
		}
	}
	var full maps.NameText
	for i := range full.Text {
		full.Text[i] = 'x'
	}
	if got := NameOf(&full); len(got) != len(full.Text) {
		t.Errorf("an unterminated name is %d bytes long", len(got))
	}
}
