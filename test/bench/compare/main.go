// Command compare reports what became better and what became worse between two runs of the benchmarks.
//
//	go run ./test/bench/compare OLD NEW
//
// OLD and NEW are JSON files of results, or folders with an all.json or else the files of single
// benchmarks. Rows are matched by row, case and metric. A change counts if it exceeds what chance
// explains: 5 %, more if the rounds of the two runs were less certain, and 28 % for times and rates
// that neither run measured in rounds. The exit code is 0 whatever the outcome; with -strict it is 3
// if something became worse or is missing. (Under "go run" any code other than 0 becomes 1.)
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"fairlead.io/fairlead/test/bench/result"
)

// exitWorse is the exit code for a regression, distinct from those for errors.
const exitWorse = 3

func main() {
	code, err := run(os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "compare:", err)
	}
	os.Exit(code)
}

func run(arguments []string, out io.Writer) (int, error) {
	set := flag.NewFlagSet("compare", flag.ContinueOnError)
	strict := set.Bool("strict", false, fmt.Sprintf("exit with %d if something became worse", exitWorse))
	if err := set.Parse(arguments); err != nil {
		return 2, err
	}
	if set.NArg() != 2 {
		return 2, errors.New("give two files or folders of results, the old one first")
	}
	old, err := load(set.Arg(0))
	if err != nil {
		return 1, err
	}
	new, err := load(set.Arg(1))
	if err != nil {
		return 1, err
	}
	changes := compare(old, new)
	if err := printTable(out, changes, warnings(old, new, changes)); err != nil {
		return 1, err
	}
	if *strict && regressions(changes) > 0 {
		return exitWorse, nil
	}
	return 0, nil
}

// load reads a file of results, or the results in a folder.
func load(path string) (results, error) {
	about, err := os.Stat(path)
	if err != nil {
		return results{}, fmt.Errorf("find results: %w", err)
	}
	paths := []string{path}
	if about.IsDir() {
		if paths, err = filesOf(path); err != nil {
			return results{}, err
		}
	}
	var all results
	for _, path := range paths {
		rows, err := result.Load(path)
		if err != nil {
			return results{}, err
		}
		about, err := result.LoadAbout(path)
		if err != nil {
			return results{}, err
		}
		all.rows, all.about = append(all.rows, rows...), append(all.about, about...)
	}
	return all, nil
}

func filesOf(folder string) ([]string, error) {
	all := filepath.Join(folder, "all.json")
	if _, err := os.Stat(all); err == nil {
		return []string{all}, nil
	}
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("find results: %w", err)
	}
	paths = slices.DeleteFunc(paths, func(p string) bool { return strings.HasSuffix(p, ".machine.json") })
	if len(paths) == 0 {
		return nil, fmt.Errorf("find results: none in %s; make bench writes some to _output/bench", folder)
	}
	return paths, nil
}

// printTable prints the changes as a table, and a line that sums them up.
func printTable(out io.Writer, changes []change, warnings []string) error {
	for _, w := range warnings {
		fmt.Fprintln(out, w)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ROW\tCASE\tMETRIC\tOLD\tNEW\tCHANGE\tNOISE\tVERDICT\tEFFECT")
	count := map[effect]int{}
	lost := 0
	for _, c := range changes {
		count[c.effect]++
		if c.lost() {
			lost++
		}
		fmt.Fprintln(table, strings.Join(c.cells(), "\t"))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the comparison: %w", err)
	}
	_, err := fmt.Fprintf(out, "%d worse, %d better, %d the same, %d unsure, %d new, %d missing; %d goals lost\n",
		count[worse], count[better], count[same], count[unsure], count[added], count[missing], lost)
	if err != nil {
		return fmt.Errorf("print the comparison: %w", err)
	}
	return nil
}

// cells returns the columns of a change.
func (c change) cells() []string {
	row := c.new
	if c.effect == missing {
		row = c.old
	}
	name := []string{row.Row, row.Case, row.Metric}
	switch c.effect {
	case added:
		return append(name, "-", figureOf(row), "-", "-", string(row.Verdict), string(added))
	case missing:
		return append(name, figureOf(row), "-", "-", "-", string(row.Verdict), string(missing))
	}
	mark := ""
	if c.ratio {
		mark = "x"
	}
	by := fmt.Sprintf("%+.1f %%", 100*c.part)
	if math.IsInf(c.part, 0) {
		by = "from 0"
	}
	verdict := string(c.new.Verdict)
	if c.old.Verdict != c.new.Verdict {
		verdict = fmt.Sprintf("%s -> %s", c.old.Verdict, c.new.Verdict)
	}
	return append(name, result.Figure(c.was)+mark, result.Figure(c.is)+mark, by, fmt.Sprintf("%.0f %%", 100*c.noise), verdict, string(c.effect))
}

// figureOf returns the ratio of a row, marked with an x, or else its value.
func figureOf(r result.Row) string {
	if r.Ratio != 0 {
		return result.Figure(r.Ratio) + "x"
	}
	return result.Figure(r.Value)
}
