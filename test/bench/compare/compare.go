package main

import (
	"fmt"
	"math"
	"slices"

	"fairlead.io/fairlead/test/bench/result"
)

const (
	// leastNoise is the smallest noise assumed: two runs of the same thing on the same machine
	// differ by this much.
	leastNoise = 0.05
	// unknownNoise is assumed for rows that were not measured in rounds, whose uncertainty is
	// unknown.
	unknownNoise = 0.2
)

// effect classifies the change of a figure.
type effect string

const (
	same    effect = ""        // within the noise
	better  effect = "better"  // beyond the noise, in the right direction
	worse   effect = "WORSE"   // beyond the noise, in the wrong direction
	unsure  effect = "unsure"  // one of the two results was inconclusive
	added   effect = "new"     // only in the new results
	missing effect = "MISSING" // only in the old ones
)

// change compares the old and the new version of one row.
type change struct {
	old, new result.Row
	ratio    bool    // the figures are ratios, not values
	was, is  float64 // the figures
	part     float64 // change of the figure, as a fraction of the old one
	noise    float64 // fraction by which the figure changes by chance
	effect   effect
}

// results is one side of a comparison.
type results struct {
	rows  []result.Row
	about []result.About
}

// noise returns the uncertainty of a row's figure, as a fraction of it.
func (r results) noise(key result.Key, ratio bool) float64 {
	for _, about := range r.about {
		for _, d := range about.Details {
			switch {
			case d.Key() != key:
			case ratio:
				return d.Ratio.Noise()
			default:
				return d.Value.Noise()
			}
		}
	}
	switch result.Unit(key.Metric) {
	case "bytes", "KiB", "MiB", "GiB", "instructions":
		return 0 // counts do not depend on what else the machine does
	}
	return unknownNoise
}

// machineOf returns the machine that a row's benchmark ran on, "" if that was not recorded.
func (r results) machineOf(key result.Key) string {
	for _, about := range r.about {
		prefix := about.Benchmark + "/"
		if len(key.Row) > len(prefix) && key.Row[:len(prefix)] == prefix {
			return about.Machine.String()
		}
	}
	return ""
}

// compare matches rows by name, in the order of the new results, followed by the rows that are
// missing from them.
func compare(old, new results) []change {
	var changes []change
	for _, row := range new.rows {
		at := slices.IndexFunc(old.rows, func(r result.Row) bool { return r.Key() == row.Key() })
		if at < 0 {
			changes = append(changes, change{new: row, effect: added})
			continue
		}
		changes = append(changes, compareRow(old, new, old.rows[at], row))
	}
	for _, row := range old.rows {
		if !slices.ContainsFunc(new.rows, func(r result.Row) bool { return r.Key() == row.Key() }) {
			changes = append(changes, change{old: row, effect: missing})
		}
	}
	return changes
}

// compareRow compares two rows of the same name. It compares the ratios if both have one: they still
// hold if the machine was busier, and roughly on another machine.
func compareRow(old, new results, was, is result.Row) change {
	c := change{old: was, new: is, was: was.Value, is: is.Value}
	if was.Ratio != 0 && is.Ratio != 0 {
		c.ratio, c.was, c.is = true, was.Ratio, is.Ratio
	}
	// Independent errors add up by their squares.
	c.noise = max(leastNoise, math.Hypot(old.noise(was.Key(), c.ratio), new.noise(is.Key(), c.ratio)))
	switch {
	case c.was != 0:
		c.part = c.is/c.was - 1
	case c.is != 0:
		c.part = math.Inf(1)
	}
	up := result.MoreIsBetter(is.Metric)
	switch {
	case was.Verdict == result.Inconclusive || is.Verdict == result.Inconclusive:
		c.effect = unsure
	case math.Abs(c.part) <= c.noise:
		c.effect = same
	case (c.part > 0) == up:
		c.effect = better
	default:
		c.effect = worse
	}
	return c
}

// warnings returns the reasons why the comparison is weaker than it looks.
func warnings(old, new results, changes []change) []string {
	var list []string
	for _, c := range changes {
		if c.effect == added || c.effect == missing {
			continue
		}
		was, is := old.machineOf(c.old.Key()), new.machineOf(c.new.Key())
		if was == is {
			continue
		}
		warning := fmt.Sprintf("the machines differ; trust only ratios:\n  old: %s\n  new: %s", orUnknown(was), orUnknown(is))
		if !slices.Contains(list, warning) {
			list = append(list, warning)
		}
	}
	return list
}

func orUnknown(text string) string {
	if text == "" {
		return "not recorded"
	}
	return text
}

// regressions counts the rows that became worse, went missing, or passed and now miss their goal.
func regressions(changes []change) int {
	n := 0
	for _, c := range changes {
		if c.effect == worse || c.effect == missing || c.lost() {
			n++
		}
	}
	return n
}

// lost reports whether a goal that was met is now missed by more than chance.
func (c change) lost() bool {
	return c.old.Verdict == result.Pass && c.new.Verdict == result.Miss && c.effect != same && c.effect != better
}
