package podnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxRecord is more than any record needs: with a thousand ports it has a hundred KiB.
	maxRecord = 1 << 20
	staged    = ".tmp-"
)

// folder is a directory of records, each a small file. A file has its final content from the moment it has its name, and
// no two records get one name. When it reaches the disk is the kernel's choice: after a crash of the kernel all records are
// of another boot, and those that are missing or damaged would have been removed anyway.
type folder struct{ dir string }

func openFolder(dir string) (folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return folder{}, fmt.Errorf("create directory of records: %w", err)
	}
	return folder{dir}, nil
}

// create writes a new record; the error wraps fs.ErrExist if there is one of that name.
func (f folder) create(name string, record any) error { return f.write(name, record, os.Link) }

// replace writes a record in the place of any that there is.
func (f folder) replace(name string, record any) error { return f.write(name, record, os.Rename) }

// write makes a file that nothing reads and then gives it its name.
func (f folder) write(name string, record any, publish func(from, to string) error) (err error) {
	content, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode record %s: %w", name, err)
	}
	file, err := os.CreateTemp(f.dir, staged)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	defer func() {
		// After a rename there is nothing left to remove.
		if gone := os.Remove(file.Name()); gone != nil && !errors.Is(gone, fs.ErrNotExist) && err == nil {
			err = gone
		}
	}()
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write record %s: %w", name, err)
	}
	if err := publish(file.Name(), filepath.Join(f.dir, name)); err != nil {
		return fmt.Errorf("write record %s: %w", name, err)
	}
	return nil
}

// remove takes a record away; one that is not there is no error.
func (f folder) remove(name string) error {
	err := os.Remove(filepath.Join(f.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	return nil
}

// names returns the names of all records, and removes what an interrupted write left if told to.
func (f folder) names(clear bool) ([]string, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var names []string
	for _, entry := range entries {
		switch {
		case strings.HasPrefix(entry.Name(), staged) && clear:
			if err := os.Remove(filepath.Join(f.dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("remove half a record: %w", err)
			}
		case !strings.HasPrefix(entry.Name(), "."):
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// read decodes a record. Links and pipes that somebody put there are refused, not followed.
func (f folder) read(name string, record any) error {
	file, err := os.OpenFile(filepath.Join(f.dir, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("read record: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("read record %s: %w", name, errors.Join(err, errors.New("not a file")))
	}
	content, err := io.ReadAll(io.LimitReader(file, maxRecord+1))
	if err != nil {
		return fmt.Errorf("read record: %w", err)
	}
	if len(content) > maxRecord {
		return fmt.Errorf("read record %s: more than %d bytes", name, maxRecord)
	}
	if err := json.Unmarshal(content, record); err != nil {
		return fmt.Errorf("read record %s: %w", name, err)
	}
	return nil
}
