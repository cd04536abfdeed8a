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

// AboutPath returns the path of the file that describes the origin of the rows in path.
func AboutPath(path string) string { return strings.TrimSuffix(path, ".json") + ".machine.json" }

// Save writes rows to path, and a description of their origin beside it. Concurrent readers see
// either the old file or the new one.
func Save(path string, rows []Row, about []About) error {
	if err := check(rows); err != nil {
		return err
	}
	// Write the description first, so that no rows are ever seen without it.
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

// parse reads rows and requires all keys: a zero that was never written would look like a figure.
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

// LoadAbout reads the description of the origin of the rows in path. It is no error if there is
// none.
func LoadAbout(path string) ([]About, error) {
	text, err := os.ReadFile(AboutPath(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the origin of the results: %w", err)
	}
	var about []About
	if err := json.Unmarshal(text, &about); err != nil {
		return nil, fmt.Errorf("read the origin of the results of %s: %w", path, err)
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

// WriteFile writes a file and creates its folder. The file appears once it is complete.
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
	// CreateTemp makes the file private, but results are public.
	if err := errors.Join(copied, file.Chmod(0o644), file.Close()); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}
