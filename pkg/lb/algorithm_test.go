package lb

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"fairlead.io/fairlead/pkg/bpf"
)

// TestAlgorithmsAreThePrograms compares names and values with the enum in the compiled programs.
func TestAlgorithmsAreThePrograms(t *testing.T) {
	spec, err := bpf.LoadMaps()
	if err != nil {
		t.Fatal(err)
	}
	var enum *btf.Enum
	if err := spec.Types.TypeByName("algorithm", &enum); err != nil {
		t.Fatal(err)
	}
	list := algorithmList()
	if len(list) != len(enum.Values) {
		t.Errorf("%d algorithms, the programs have %d", len(list), len(enum.Values))
	}
	for i, v := range enum.Values {
		want := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(v.Name, "ALGORITHM_"), "_", "-"))
		if got := Algorithm(v.Value).String(); got != want {
			t.Errorf("the programs' %s = %d is called %q here, want %q", v.Name, v.Value, got, want)
		}
		if i < len(list) && uint64(list[i]) != v.Value {
			t.Errorf("algorithm %d of the list is %v", i, list[i])
		}
	}
	if got, want := Algorithm(200).String(), "algorithm(200)"; got != want {
		t.Errorf("a value without a name: %q, want %q", got, want)
	}
}

func TestParseAlgorithm(t *testing.T) {
	for name, want := range map[string]Algorithm{
		"random": Random, "round-robin": RoundRobin, "source-hash": SourceHash, "maglev": Maglev,
		"rr": RoundRobin, "wrr": RoundRobin, "sh": SourceHash, "mh": Maglev,
	} {
		if got, err := ParseAlgorithm(name); got != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", name, got, err, want)
		}
	}
	for name, says := range map[string][]string{
		"lc":    {`"lc" (least connection)`, "open connections", "use round-robin"},
		"wlc":   {"weighted least connection", "open connections", "use round-robin with weights"},
		"sed":   {"shortest expected delay", "open connections"},
		"nq":    {"never queue", "open connections"},
		"ovf":   {"overflow", "open connections"},
		"twos":  {"two choices", "open connections", "use random"},
		"lblc":  {"locality", "destination address", "use maglev"},
		"lblcr": {"replication", "destination address", "use maglev"},
		"dh":    {"destination hashing", "destination address", "source-hash"},
		"fo":    {"failover", "weight 0"},
		"":      {`unknown algorithm ""`, "random, round-robin, source-hash, maglev, rr, wrr, sh, mh"},
		"RR":    {`unknown algorithm "RR"`, "random, round-robin"},
		"Maglev": {
			`unknown algorithm "Maglev"`, "maglev",
		},
		" rr":                                  {`unknown algorithm " rr"`},
		"x\x00\n" + strings.Repeat("y", 1<<20): {`unknown algorithm "x\x00\nyyy`, "use one of"},
	} {
		got, err := ParseAlgorithm(name)
		if err == nil || got != Random {
			t.Errorf("%.20q: %v, %v; want an error", name, got, err)
			continue
		}
		message := err.Error()
		for _, part := range says {
			if !strings.Contains(message, part) {
				t.Errorf("%.20q: %q does not say %q", name, message, part)
			}
		}
		if len(message) > 300 || strings.ContainsAny(message, "\n\x00") || strings.Contains(message, ". ") {
			t.Errorf("%.20q: not one short sentence: %q", name, message)
		}
	}
}

// algorithmRows returns the rows of the tables in docs/algorithms.md by the name in their first
// column.
func algorithmRows(t *testing.T) (page string, rows map[string]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "algorithms.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows = map[string]string{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			rows[strings.Trim(cells[1], " `")] = strings.Join(cells[2:], "|")
		}
	}
	return string(text), rows
}

func TestAlgorithmPage(t *testing.T) {
	page, rows := algorithmRows(t)
	for _, a := range algorithmList() {
		if rows[a.String()] == "" {
			t.Errorf("no row for %s", a)
		}
	}
	for _, s := range algorithmSchedulers() {
		row := rows[s.name]
		switch {
		case !strings.Contains(row, s.title):
			t.Errorf("no row for %s that calls it %q", s.name, s.title)
		case s.missing == "" && !strings.Contains(row, "`"+s.algorithm.String()+"`"):
			t.Errorf("the row of %s does not name %s", s.name, s.algorithm)
		}
	}
	for _, size := range maglevSizes() {
		most := int(size) / 100
		if size == maglevSize(MaxSlots) {
			most = MaxSlots
		}
		row := rows[strconv.Itoa(int(size))]
		if !strings.Contains(row, strconv.Itoa(most)+" |") {
			t.Errorf("the row of %d slots does not say that they serve up to %d backends", size, most)
		}
		order, _ := extentOrder(size)
		if memory := strconv.Itoa(8<<order>>10) + " KiB"; !strings.Contains(row, memory) {
			t.Errorf("the row of %d slots does not say %s", size, memory)
		}
	}
	for _, word := range []string{"`fairlead.io/algorithm`", "`fairlead.io/weight`", "`--algorithm`", strconv.Itoa(MaxSlots)} {
		if !strings.Contains(page, word) {
			t.Errorf("the page does not mention %s", word)
		}
	}
}

// Every algorithm, and one that this version does not know, is read back from its text, and has
// something that decides.
func TestAlgorithmText(t *testing.T) {
	for _, a := range append(algorithmList(), 77) {
		text, err := a.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var again Algorithm
		if err := again.UnmarshalText(text); err != nil || again != a {
			t.Errorf("%s is read back as %s, %v", text, again, err)
		}
		if got := a.OfPacket(true, false); got != ByClient {
			t.Errorf("with affinity, %s decides by %d", a, got)
		}
	}
	if Random.OfPacket(true, true) != ByFlow || Maglev.OfPacket(true, true) != ByClient || RoundRobin.OfSocket() != ByTurn {
		t.Error("the table of what decides is wrong")
	}
}
