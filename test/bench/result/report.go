package result

import (
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fairlead.io/fairlead/test/bench/machine"
)

// About is what the rows of one benchmark come from. It lies beside them in NAME.machine.json.
type About struct {
	Benchmark string          `json:"benchmark"`
	Machine   machine.Machine `json:"machine"`
	Before    machine.Load    `json:"before"`
	After     machine.Load    `json:"after"`
	Began     time.Time       `json:"began"`
	Seconds   float64         `json:"seconds"`
	Details   []Detail        `json:"details,omitempty"`
}

// Detail is how a row was measured, where that was in rounds.
type Detail struct {
	Row       string  `json:"row"`
	Case      string  `json:"case"`
	Metric    string  `json:"metric"`
	Variant   string  `json:"variant"`   // what Value is of
	Yardstick string  `json:"yardstick"` // what Against is of
	Seed      uint64  `json:"seed"`      // of the order of the variants
	Value     Spread  `json:"value"`
	Against   Spread  `json:"against"`
	Ratio     Spread  `json:"ratio"`         // of the two, round by round
	Drift     float64 `json:"drift"`         // of the yardstick over the run
	Why       string  `json:"why,omitempty"` // it is inconclusive
}

// Key returns the name of the row.
func (d Detail) Key() Key { return Key{d.Row, d.Case, d.Metric} }

// Spread is how figures of several rounds lie. The true median is between Low and High with 95 % confidence.
type Spread struct {
	Rounds int     `json:"rounds"`
	Min    float64 `json:"min"`
	Q1     float64 `json:"q1"`
	Median float64 `json:"median"`
	Q3     float64 `json:"q3"`
	Max    float64 `json:"max"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// Noise returns how uncertain the median is, as a part of it.
func (s Spread) Noise() float64 {
	if s.Median == 0 {
		return 0
	}
	return (s.High - s.Low) / 2 / math.Abs(s.Median)
}

// Config is what a Report needs.
type Config struct {
	Benchmark string    // its name, as in "make bench-NAME"
	Path      string    // of the JSON
	Out       io.Writer // for the table
	Root      fs.FS     // the machine's; nil = this one's
	Tree      fs.FS     // the source tree's; nil = that around the working directory
}

// Report is what a benchmark found so far.
type Report struct {
	cfg   Config
	about About
	rows  []Row
}

// Begin notes what runs where, prints it, and returns a Report without rows.
func Begin(cfg Config) (*Report, error) {
	if cfg.Root == nil {
		cfg.Root = os.DirFS("/")
	}
	if cfg.Tree == nil {
		cfg.Tree = sourceTree()
	}
	about := About{Benchmark: cfg.Benchmark, Began: time.Now()}
	var err error
	if about.Machine, err = machine.Read(cfg.Root, cfg.Tree); err != nil {
		return nil, fmt.Errorf("begin the report of %s: %w", cfg.Benchmark, err)
	}
	if about.Before, err = machine.ReadLoad(cfg.Root); err != nil {
		return nil, fmt.Errorf("begin the report of %s: %w", cfg.Benchmark, err)
	}
	if _, err := fmt.Fprintf(cfg.Out, "%s on %s\n", cfg.Benchmark, about.Machine); err != nil {
		return nil, fmt.Errorf("begin the report of %s: %w", cfg.Benchmark, err)
	}
	return &Report{cfg: cfg, about: about}, nil
}

// sourceTree returns the tree of the module that the working directory is in, or nil.
func sourceTree() fs.FS {
	dir, err := os.Getwd()
	if err != nil {
		return nil
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return os.DirFS(dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// Out is where the table will go, for what is told until then.
func (r *Report) Out() io.Writer { return r.cfg.Out }

// Add adds rows.
func (r *Report) Add(rows ...Row) { r.rows = append(r.rows, rows...) }

// AddMeasured adds a row and how it was measured.
func (r *Report) AddMeasured(row Row, detail Detail) {
	detail.Row, detail.Case, detail.Metric = row.Row, row.Case, row.Metric
	r.Add(row)
	r.about.Details = append(r.about.Details, detail)
}

// Finish prints the table, and writes the rows and what they come from. In the files a row has the name of the benchmark
// before its own, so that those of many benchmarks make one list.
func (r *Report) Finish() error {
	if len(r.rows) == 0 {
		return fmt.Errorf("finish the report of %s: it measured nothing", r.cfg.Benchmark)
	}
	var err error
	if r.about.After, err = machine.ReadLoad(r.cfg.Root); err != nil {
		return fmt.Errorf("finish the report of %s: %w", r.cfg.Benchmark, err)
	}
	r.about.Seconds = time.Since(r.about.Began).Seconds()
	if err := Table(r.cfg.Out, r.rows); err != nil {
		return err
	}
	stolen := r.about.After.Times.Since(r.about.Before.Times).Stolen()
	if _, err := fmt.Fprintf(r.cfg.Out, "load %.2f before, %.2f after; %.1f %% of the CPU time that was wanted was stolen\n",
		r.about.Before.One, r.about.After.One, 100*stolen); err != nil {
		return fmt.Errorf("print the results: %w", err)
	}
	for _, d := range r.about.Details {
		if d.Why == "" {
			continue
		}
		if _, err := fmt.Fprintf(r.cfg.Out, "inconclusive: %s: %s\n", d.Key(), d.Why); err != nil {
			return fmt.Errorf("print the results: %w", err)
		}
	}
	prefix := r.cfg.Benchmark + "/"
	for i := range r.rows {
		r.rows[i].Row = prefix + strings.TrimPrefix(r.rows[i].Row, prefix)
	}
	for i := range r.about.Details {
		r.about.Details[i].Row = prefix + strings.TrimPrefix(r.about.Details[i].Row, prefix)
	}
	return Save(r.cfg.Path, r.rows, []About{r.about})
}
