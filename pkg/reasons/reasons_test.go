package reasons

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/goldenfile"
)

// TestReasons checks that every reason of the programs is described, and that docs/drops.md is up
// to date.
func TestReasons(t *testing.T) {
	_, words, err := Words()
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{"none": true}
	for _, r := range All() {
		if described[r.Word] {
			t.Errorf("%s is described twice", r.Word)
		}
		described[r.Word] = true
		for what, text := range map[string]string{"what": r.What, "cause": r.Cause, "cure": r.Cure} {
			if !strings.HasSuffix(text, ".") {
				t.Errorf("%s: the %s is no sentence: %q", r.Word, what, text)
			}
		}
		if !slices.Contains(words, r.Word) {
			t.Errorf("%s is described, but the programs do not have it", r.Word)
		}
	}
	for _, word := range words {
		if !described[word] {
			t.Errorf("reason %s has no description: add it to pkg/reasons/reasons.go", word)
		}
	}
	const path = "../../docs/drops.md"
	var page strings.Builder
	if err := WritePage(&page); err != nil {
		t.Fatal(err)
	}
	if *goldenfile.Update {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if diff := cmp.Diff(page.String(), string(have)); diff != "" || err != nil {
		t.Errorf("%v; rewrite %s with: go test ./pkg/observe -run TestReasons -update\n%s", err, path, diff)
	}
}

// TestReasonsSayWhetherTheyStop compares with the comments on the reasons in the programs' source.
func TestReasonsSayWhetherTheyStop(t *testing.T) {
	source, err := os.ReadFile("../../bpf/lib/reason.h")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range All() {
		name := "REASON_" + strings.ToUpper(strings.ReplaceAll(r.Word, "-", "_")) + ","
		_, rest, found := strings.Cut(string(source), "\t"+name)
		comment, _, ended := strings.Cut(rest, "*/")
		if !found || !ended {
			t.Errorf("%s has no comment", name)
			continue
		}
		stops := strings.Contains(comment, "dropped") || strings.Contains(comment, "refused")
		if stops != r.Stops || stops == strings.Contains(comment, "carried on") {
			t.Errorf("%s: stops is %v, the programs say %q", r.Word, r.Stops, strings.Join(strings.Fields(comment), " "))
		}
	}
}

func TestDrops(t *testing.T) {
	list := Drops([]Counter{
		{"sock", "none", 9, 9}, {"sock", "no-memory", 2, 0}, {"sock", "no-backend", 0, 0},
		{"tc", "none", 9, 9}, {"tc", "ttl", 1, 60}, {"tc", "source-range", 5, 300}, {"tc", "yet-to-come", 3, 180},
	})
	var text strings.Builder
	if err := WriteDrops(&text, Seen(list)); err != nil {
		t.Fatal(err)
	}
	want := `HOOK  REASON        EFFECT      PACKETS  BYTES
sock  no-memory     carried on  2        0
tc    source-range  stopped     5        300
tc    yet-to-come   stopped     3        180
tc    ttl           stopped     1        60
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("(-want +have):\n%s", diff)
	}
	after := slices.Clone(list)
	after[1].Packets, after[2].Packets, after[2].Bytes = 0, 15, 900 // the counter of the first was reset to zero
	after[4].Packets, after[4].Bytes = 0, 0                         // as was this one
	rates := DropRates(list, after, 2*time.Second)
	if len(rates) != 1 || rates[0].Reason != "source-range" || rates[0].PacketsPerSecond != 5 || rates[0].BytesPerSecond != 300 {
		t.Errorf("rates %+v", rates)
	}
	text.Reset()
	if err := WriteDropRates(&text, time.Unix(0, 0), rates); err != nil {
		t.Fatal(err)
	}
	want = `1970-01-01T00:00:00Z
HOOK  REASON        EFFECT   PACKETS/S  BYTES/S  PACKETS  BYTES
tc    source-range  stopped  5.0        300.0    15       900
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("rates (-want +have):\n%s", diff)
	}
}
