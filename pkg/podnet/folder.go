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
	// maxRecord is far above any real record: one with a thousand ports takes about 100 KiB.
	maxRecord = 1 << 20
	staged    = ".tmp-"
)

// folder is a directory of records, each a small file. A file has its final content from the moment
// it has its name, and no two records share a name. Nothing is synced to disk: after a crash of the
// kernel, all records are of another boot, so those that are missing or damaged would have been
// removed anyway.
type folder struct{ dir string }

func openFolder(dir string) (folder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return folder{}, fmt.Errorf("create directory of records: %w", err)
	}
	return folder{dir}, nil
}

// create writes a new record. The error wraps fs.ErrExist if a record of that name exists.
func (f folder) create(name string, record any) error { return f.write(name, record, os.Link) }

// replace writes a record, over any earlier one of that name.
func (f folder) replace(name string, record any) error { return f.write(name, record, os.Rename) }

// write writes a temporary file and then publishes it under its name.
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
		// After a rename the temporary file is gone.
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

// writable returns an error if no record can be written, with what to do about it. It really writes:
// of a file system that is full, only that tells.
func (f folder) writable() error {
	const trial = ".tmp-trial"
	err := os.WriteFile(filepath.Join(f.dir, trial), make([]byte, os.Getpagesize()), 0o600)
	if gone := os.Remove(filepath.Join(f.dir, trial)); err == nil {
		err = gone
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("write a record: %w%s", err, cureOf(err, f.dir))
}

// cureOf returns what to do about a file that cannot be written, after a colon, or "".
func cureOf(err error, dir string) string {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Sprintf(": make room there; \"df %[1]s\" and \"df -i %[1]s\" show how much is used", dir)
	case errors.Is(err, unix.EROFS):
		return ": mount the file system read-write again"
	case errors.Is(err, fs.ErrNotExist):
		return ": the directory is gone; restart the agent, which makes it again"
	}
	return ""
}

// remove removes a record. It is no error if there is none.
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

// names returns the names of all records. With clear set it also removes the temporary files of
// interrupted writes.
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
				return nil, fmt.Errorf("remove an unfinished record: %w", err)
			}
		case !strings.HasPrefix(entry.Name(), "."):
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// read decodes a record. It refuses symbolic links and pipes that somebody put there.
func (f folder) read(name string, record any) error {
	file, err := os.OpenFile(filepath.Join(f.dir, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("read record: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("read record %s: %w", name, errors.Join(err, errors.New("not a regular file")))
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
