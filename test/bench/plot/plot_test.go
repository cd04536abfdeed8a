package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/bench/machine"
	"fairlead.io/fairlead/test/bench/result"
)

const machineText = "AMD EPYC, 2 cores without SMT, 1 NUMA node, 24105 MiB, virtual, governor unknown, Linux 6.18.44, clang 19; " +
	"load 0.40 before, 1.20 after"

// pictures returns the pictures of the golden files.
func pictures() map[string]Picture {
	row := func(name, of, metric string, value, yardstick, ratio, goal float64, verdict result.Verdict) result.Row {
		return result.Row{Row: name, Case: of, Metric: metric, Value: value, Yardstick: yardstick, Ratio: ratio, Goal: goal, Verdict: verdict}
	}
	const visible, connect, rate, tail = "us, object to visible, median", "ns per connect", "req/s, one connection at a time", "us, object to visible, p99"
	return map[string]Picture{
		"bars": {Title: "socket", Subtitle: machineText, Rows: []result.Row{
			row("socket/connect", "IPv4, one backend", connect, 9800, 9000, 1.09, 1.1, result.Pass),
			row("socket/connect", "IPv6, one backend", connect, 11000, 9500, 1.16, 1.1, result.Miss),
			row("socket/connect", "IPv4, 1000 backends behind a Service with session affinity of three hours", connect, 12000, 9000, 1.33, 1.3, result.Inconclusive),
			row("socket/requests", "IPv4 <& IPv6>", rate, 5200, 0, 0, 5000, result.Pass),
			row("socket/requests", "no goal", rate, 700, 0, 0, 0, result.Pass),
		}},
		"lines": {Title: "control", Subtitle: machineText, Rows: []result.Row{
			row("control/change", "100000 services x 3 endpoints", visible, 25.4, 3.5, 7.26, 40, result.Pass),
			row("control/change", "1000 services x 3 endpoints", visible, 20.8, 3.6, 5.67, 40, result.Pass),
			row("control/change", "20000 services x 3 endpoints", visible, 150, 3.5, 42.9, 40, result.Miss),
			row("control/change", "1000 services x 3 endpoints", tail, 199, 0, 0, 300, result.Pass),
			row("control/change", "20000 services x 3 endpoints", tail, 250, 0, 0, 400, result.Inconclusive),
			row("control/change", "100000 services x 3 endpoints", tail, 700, 0, 0, 500, result.Miss),
			row("datapath/lookup", "1k flows, IPv4", "ns per packet", 40, 30, 1.3, 1.5, result.Pass),
			row("datapath/lookup", "100k flows, IPv4", "ns per packet", 80, 50, 1.6, 1.5, result.Miss),
			row("datapath/lookup", "1M flows, IPv4", "ns per packet", 120, 70, 1.7, 1.5, result.Miss),
			row("datapath/lookup", "1k flows, IPv6", "ns per packet", 50, 30, 1.4, 1.5, result.Pass),
			row("datapath/lookup", "100k flows, IPv6", "ns per packet", 60, 50, 1.2, 1.5, result.Pass),
			row("datapath/lookup", "1M flows, IPv6", "ns per packet", 90, 70, 1.3, 1.5, result.Pass),
		}},
	}
}

func TestDraw(t *testing.T) {
	for name, p := range pictures() {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := Draw(&out, p); err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".svg")
			if flag.Lookup("update").Value.String() == "true" {
				if err := result.WriteFile(golden, &out); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Errorf("picture; inspect it and accept it with -update (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the golden files")
	flag.Parse()
	os.Exit(m.Run())
}

// element is a part of a picture that the tests check.
type element struct {
	XMLName xml.Name
	X       float64 `xml:"x,attr"`
	Y       float64 `xml:"y,attr"`
	Size    float64 `xml:"font-size,attr"`
	Anchor  string  `xml:"text-anchor,attr"`
	Width   float64 `xml:"width,attr"`
	Height  float64 `xml:"height,attr"`
	Text    string  `xml:",chardata"`
}

// No two texts of a picture overlap, and none is outside the picture.
func TestTextsDoNotOverlap(t *testing.T) {
	for name, p := range pictures() {
		var out bytes.Buffer
		if err := Draw(&out, p); err != nil {
			t.Fatal(err)
		}
		var document struct {
			Height float64   `xml:"height,attr"`
			Texts  []element `xml:"text"`
		}
		if err := xml.Unmarshal(out.Bytes(), &document); err != nil {
			t.Fatalf("%s is not XML: %v", name, err)
		}
		type area struct {
			left, right, top, bottom float64
			text                     string
		}
		var areas []area
		for _, e := range document.Texts {
			wide := textWidth(e.Text, e.Size)
			left := e.X
			switch e.Anchor {
			case "middle":
				left -= wide / 2
			case "end":
				left -= wide
			}
			a := area{left, left + wide, e.Y - 0.75*e.Size, e.Y + 0.2*e.Size, e.Text}
			if a.left < 0 || a.right > width || a.top < 0 || a.bottom > document.Height {
				t.Errorf("%s: %q is outside the picture: %+v", name, e.Text, a)
			}
			for _, b := range areas {
				if a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom {
					t.Errorf("%s: %q and %q overlap", name, a.text, b.text)
				}
			}
			areas = append(areas, a)
		}
		if len(areas) < 20 {
			t.Errorf("%s has only %d texts", name, len(areas))
		}
	}
}

func TestPanels(t *testing.T) {
	sizes := func(cases ...string) (rows []result.Row) {
		for _, c := range cases {
			rows = append(rows, result.Row{Row: "r", Case: c, Metric: "ns"})
		}
		return rows
	}
	tests := []struct {
		name string
		rows []result.Row
		want []string // of the series
	}{
		{"three sizes", sizes("1000 services", "20000 services", "100000 services"), []string{"services"}},
		{"short sizes", sizes("1k", "20k", "1M"), []string{""}},
		{"two sizes", sizes("1000 services", "20000 services"), nil},
		{"no sizes", sizes("IPv4", "IPv6", "both"), nil},
		{"one without", sizes("1 a", "2 a", "3 a", "none"), nil},
		{"one alone", sizes("1 a", "2 a", "3 a", "1 b"), nil},
		{"no logarithm", sizes("0 a", "2 a", "3 a"), nil},
		{"not a size", sizes("1e3 a", "2x a", "-3 a"), nil},
		{"two series", sizes("1 a", "2 a", "3 a", "1 b", "2 b", "3 b"), []string{"a", "b"}},
	}
	for _, tt := range tests {
		var names []string
		for _, s := range panelsOf(tt.rows)[0].series {
			names = append(names, s.name)
		}
		if diff := cmp.Diff(tt.want, names); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	mixed := append(sizes("a"), result.Row{Row: "r", Case: "b", Metric: "ns", Ratio: 2}, result.Row{Row: "r", Case: "c", Metric: "us"})
	if got := len(panelsOf(mixed)); got != 3 {
		t.Errorf("values, ratios and another metric are in %d panels, want one for each", got)
	}
}

func TestTicks(t *testing.T) {
	tests := []struct {
		top    float64
		wanted int
		want   []float64
	}{
		{0, 5, []float64{0, 1}}, {5, 5, []float64{0, 1, 2, 3, 4, 5}}, {40, 4, []float64{0, 10, 20, 30, 40}},
		{42.9, 4, []float64{0, 20, 40, 60}}, {1.33, 5, []float64{0, 0.5, 1, 1.5}}, {700, 4, []float64{0, 200, 400, 600, 800}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, ticks(tt.top, tt.wanted)); diff != "" {
			t.Errorf("up to %v (-want +got):\n%s", tt.top, diff)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.5: "0.5", 999: "999", 1000: "1k", 2500: "2.5k", 1e5: "100k", 1e6: "1M", 3e9: "3G"} {
		if got := short(v); got != want {
			t.Errorf("%v in short: have %s, want %s", v, got, want)
		}
	}
}

func TestText(t *testing.T) {
	if got := wrap("one two three", 10, textWidth("one two", 10)); len(got) != 2 || got[0] != "one two" || got[1] != "three" {
		t.Errorf("wrapped to %q", got)
	}
	if got := fit("a long text indeed", 10, textWidth("a long text", 10)); !strings.HasSuffix(got, "…") || textWidth(got, 10) > textWidth("a long text", 10) {
		t.Errorf("cut to %q", got)
	}
	if got := fit("short", 10, 100); got != "short" {
		t.Errorf("cut to %q", got)
	}
}

// full is a writer that always fails.
type full struct{ io.Writer }

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestDrawFails(t *testing.T) {
	if err := Draw(full{}, Picture{}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("have error %v", err)
	}
}

// The picture of a file of results is beside it, and has the rows and the machine.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket.json")
	about := result.About{Before: machine.Load{One: 0.4}, After: machine.Load{One: 1.2}, Began: time.Unix(0, 0)}
	if err := result.Save(path, pictures()["bars"].Rows, []result.About{about}); err != nil {
		t.Fatal(err)
	}
	if err := File(path); err != nil {
		t.Fatal(err)
	}
	picture, err := os.ReadFile(filepath.Join(filepath.Dir(path), "socket.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{">socket<", "socket/requests", "load 0.40 before, 1.20 after", "1970-01-01 00:00 UTC"} {
		if !strings.Contains(string(picture), want) {
			t.Errorf("%q is not in %s", want, picture)
		}
	}
	if err := File(path + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without results: %v", err)
	}
}
