package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// AboutPath returns where the file about the rows in path lies.
func AboutPath(path string) string { return strings.TrimSuffix(path, ".json") + ".machine.json" }

// Save writes rows to path, and what they come from beside it. Whoever reads at the same time sees the old file or the
// new one, never a part.
func Save(path string, rows []Row, about []About) error {
	if err := check(rows); err != nil {
		return err
	}
	// First what explains the rows, so that rows are never seen without it.
	if err := writeJSON(AboutPath(path), about); err != nil {
		return err
	}
	return writeJSON(path, rows)
}

// Load reads the rows of a file.
func Load(path string) ([]Row, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	rows, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("read results of %s: %w", path, err)
	}
	return rows, nil
}

// parse reads rows and insists on all of their keys: a zero that nobody wrote looks like a figure.
func parse(text []byte) ([]Row, error) {
	var raw []map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, err
	}
	for i, r := range raw {
		for _, key := range []string{"row", "case", "metric", "value", "yardstick", "ratio", "goal", "verdict"} {
			if _, found := r[key]; !found {
				return nil, fmt.Errorf("row %d has no %q", i, key)
			}
		}
	}
	var rows []Row
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&rows); err != nil {
		return nil, err
	}
	return rows, check(rows)
}

// LoadAbout reads what the rows in path come from. Without such a file there is nothing to tell, which is no error.
func LoadAbout(path string) ([]About, error) {
	text, err := os.ReadFile(AboutPath(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what results come from: %w", err)
	}
	var about []About
	if err := json.Unmarshal(text, &about); err != nil {
		return nil, fmt.Errorf("read what the results of %s come from: %w", path, err)
	}
	return about, nil
}

func writeJSON(path string, what any) error {
	text, err := json.MarshalIndent(what, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	return WriteFile(path, bytes.NewReader(append(text, '\n')))
}

// WriteFile writes a file and its folder. The file appears when it is complete.
func WriteFile(path string, content io.Reader) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	file, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	_, copied := io.Copy(file, content)
	// CreateTemp keeps others from reading, and results are for anybody.
	if err := errors.Join(copied, file.Chmod(0o644), file.Close()); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}
