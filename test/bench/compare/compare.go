package main

import (
	"fmt"
	"math"
	"slices"

	"fairlead.io/fairlead/test/bench/result"
)

const (
	// leastNoise is a change that is never told from chance: two runs of the same thing on the same machine differ by it.
	leastNoise = 0.05
	// unknownNoise is taken for a row that was not measured in rounds, of which nobody knows how uncertain it is.
	unknownNoise = 0.2
)

// effect says what a change of a figure means.
type effect string

const (
	same    effect = ""        // within the noise
	better  effect = "better"  // beyond it, in the direction that the metric wants
	worse   effect = "WORSE"   // beyond it, in the other one
	unsure  effect = "unsure"  // one of the two was inconclusive
	added   effect = "new"     // only in the new results
	missing effect = "MISSING" // only in the old ones
)

// change is what became of one row.
type change struct {
	old, new result.Row
	ratio    bool    // the figures are ratios, and not values
	was, is  float64 // the figures
	part     float64 // by how much the figure changed, as a part of what it was
	noise    float64 // what a change is within by chance
	effect   effect
}

// results is one side of a comparison.
type results struct {
	rows  []result.Row
	about []result.About
}

// noise returns how uncertain the figure of a row was, as a part of it.
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
		return 0 // what is counted does not depend on who else is on the machine
	}
	return unknownNoise
}

// machineOf returns on what a row's benchmark ran, "" if that was not written down.
func (r results) machineOf(key result.Key) string {
	for _, about := range r.about {
		prefix := about.Benchmark + "/"
		if len(key.Row) > len(prefix) && key.Row[:len(prefix)] == prefix {
			return about.Machine.String()
		}
	}
	return ""
}

// compare matches rows by name, in the order of the new ones, and then what is no longer there.
func compare(old, new results) []change {
	var changes []change
	for _, row := range new.rows {
		at := slices.IndexFunc(old.rows, func(r result.Row) bool { return r.Key() == row.Key() })
		if at < 0 {
			changes = append(changes, change{new: row, effect: added})
			continue
		}
		changes = append(changes, judge(old, new, old.rows[at], row))
	}
	for _, row := range old.rows {
		if !slices.ContainsFunc(new.rows, func(r result.Row) bool { return r.Key() == row.Key() }) {
			changes = append(changes, change{old: row, effect: missing})
		}
	}
	return changes
}

// judge compares two rows of one name. Where both have a ratio, the ratios are what is compared: they hold on a machine
// that was busier, and more or less on another one.
func judge(old, new results, was, is result.Row) change {
	c := change{old: was, new: is, was: was.Value, is: is.Value}
	if was.Ratio != 0 && is.Ratio != 0 {
		c.ratio, c.was, c.is = true, was.Ratio, is.Ratio
	}
	// Errors that have nothing to do with each other add up by their squares.
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

// warnings says what makes the comparison weaker than it looks.
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
		return "not written down"
	}
	return text
}

// regressions counts what became worse or went missing, and what passed and now misses its goal.
func regressions(changes []change) int {
	n := 0
	for _, c := range changes {
		if c.effect == worse || c.effect == missing || c.lost() {
			n++
		}
	}
	return n
}

// lost reports whether a goal that was met is not met any more by more than chance.
func (c change) lost() bool {
	return c.old.Verdict == result.Pass && c.new.Verdict == result.Miss && c.effect != same && c.effect != better
}
