package plot

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"

	"fairlead.io/fairlead/test/bench/result"
)

// PathOf returns the path of the picture of the rows in path.
func PathOf(path string) string { return strings.TrimSuffix(path, ".json") + ".svg" }

// File draws the rows of a file of results, and names the machine that they come from. The picture
// is written beside the file.
func File(path string) error {
	rows, err := result.Load(path)
	if err != nil {
		return err
	}
	about, err := result.LoadAbout(path)
	if err != nil {
		return err
	}
	var drawn bytes.Buffer
	name := strings.TrimSuffix(filepath.Base(path), ".json")
	if err := Draw(&drawn, Picture{Title: name, Subtitle: describe(about), Rows: rows}); err != nil {
		return err
	}
	return result.WriteFile(PathOf(path), &drawn)
}

// describe returns a line about the machine that the results come from.
func describe(about []result.About) string {
	var parts []string
	for _, a := range about {
		parts = append(parts, fmt.Sprintf("%s; load %.2f before, %.2f after; %s",
			a.Machine, a.Before.One, a.After.One, a.Began.UTC().Format("2006-01-02 15:04 UTC")))
	}
	return strings.Join(parts, "; ")
}
