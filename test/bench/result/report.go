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

// About describes the origin of the rows of one benchmark. It is stored beside them in
// NAME.machine.json.
type About struct {
	Benchmark string          `json:"benchmark"`
	Machine   machine.Machine `json:"machine"`
	Before    machine.Load    `json:"before"`
	After     machine.Load    `json:"after"`
	Began     time.Time       `json:"began"`
	Seconds   float64         `json:"seconds"`
	Details   []Detail        `json:"details,omitempty"`
}

// Detail says how a row was measured, if it was measured in rounds.
type Detail struct {
	Row       string  `json:"row"`
	Case      string  `json:"case"`
	Metric    string  `json:"metric"`
	Variant   string  `json:"variant"`   // what Value belongs to
	Yardstick string  `json:"yardstick"` // what Against belongs to
	Seed      uint64  `json:"seed"`      // of the random order of the variants
	Value     Spread  `json:"value"`
	Against   Spread  `json:"against"`
	Ratio     Spread  `json:"ratio"`         // of the two, in each round
	Drift     float64 `json:"drift"`         // of the yardstick over the run
	Why       string  `json:"why,omitempty"` // why the row is inconclusive
}

// Key returns the name of the row.
func (d Detail) Key() Key { return Key{d.Row, d.Case, d.Metric} }

// Spread describes the distribution of figures over several rounds. The true median is between Low
// and High with 95 % confidence.
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

// Noise returns the uncertainty of the median, as a fraction of it.
func (s Spread) Noise() float64 {
	if s.Median == 0 {
		return 0
	}
	return (s.High - s.Low) / 2 / math.Abs(s.Median)
}

// Config configures a Report.
type Config struct {
	Benchmark string    // the name, as in "make bench-NAME"
	Path      string    // path of the JSON file
	Out       io.Writer // receives the table
	Root      fs.FS     // root of the machine; nil = this machine
	Tree      fs.FS     // source tree; nil = the one around the working directory
}

// Report collects the results of a benchmark.
type Report struct {
	cfg   Config
	about About
	rows  []Row
}

// Begin records and prints what runs on which machine, and returns a Report without rows.
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

// sourceTree returns the tree of the module that contains the working directory, or nil.
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

// Out returns the writer that the table will go to, for output before it.
func (r *Report) Out() io.Writer { return r.cfg.Out }

// Add adds rows.
func (r *Report) Add(rows ...Row) { r.rows = append(r.rows, rows...) }

// AddMeasured adds a row with the details of its measurement.
func (r *Report) AddMeasured(row Row, detail Detail) {
	detail.Row, detail.Case, detail.Metric = row.Row, row.Case, row.Metric
	r.Add(row)
	r.about.Details = append(r.about.Details, detail)
}

// Finish prints the table, and writes the rows and the description of their origin. In the files,
// the name of the benchmark precedes that of each row, so that the rows of many benchmarks can form
// one list.
func (r *Report) Finish() error {
	if len(r.rows) == 0 {
		return fmt.Errorf("finish the report of %s: the benchmark measured nothing", r.cfg.Benchmark)
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
