package config

import "strings"

// suggest returns "; did you mean X?" if a known name is close to name, and "" otherwise.
func suggest(name string, known []string) string {
	name = strings.TrimPrefix(name, envPrefix)
	best, distance := "", len(name)/3+1
	for _, candidate := range known {
		if d := edits(name, strings.TrimPrefix(candidate, envPrefix)); d < distance {
			best, distance = candidate, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// edits returns how many bytes must be added, removed or replaced to turn a into b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
