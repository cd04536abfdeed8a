// Package phrase puts moments, sizes and names into the words that people read.
package phrase

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Printable returns a name as it is, or quoted if a terminal would do something else than show it.
func Printable(name string) string {
	if strings.ContainsFunc(name, func(c rune) bool { return c == unicode.ReplacementChar || !unicode.IsPrint(c) }) {
		return strconv.Quote(name)
	}
	return name
}

// Unknown returns the words for a value that has no name.
func Unknown(what string, value uint32) string {
	return what + "(" + strconv.FormatUint(uint64(value), 10) + ")"
}

// Bytes formats a number of bytes.
func Bytes(n uint64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), 0
	for value >= step && unit < 4 {
		value /= step
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", value, " KMGT"[unit])
}

// Clock formats a moment.
func Clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Round rounds a duration to the digits that matter.
func Round(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(100 * time.Nanosecond)
}

// List returns the words of a list between two texts, or nothing for an empty list.
func List(before string, list []string, after string) string {
	if len(list) == 0 {
		return ""
	}
	return before + strings.Join(list, ", ") + after
}
