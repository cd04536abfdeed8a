package file

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// scan reads the files that changed, or all of them if full is set, and delivers them. If something
// is being changed right now, it returns how long to wait before the next attempt, else 0.
func (s *Source) scan(full bool) time.Duration {
	before := generation(s.path)
	dir, names, err := manifests(s.path)
	if err != nil {
		s.pathErr = s.pathError(err)
		return 0
	}
	s.pathErr = nil
	wait, changed := s.load(dir, names, full)
	if generation(s.path) != before {
		// A link was swapped during the scan: some files may be from the old directory and some
		// from the new one.
		return max(wait, time.Millisecond)
	}
	now := time.Now()
	switch {
	case wait == 0:
		s.youngSince = time.Time{}
	case s.youngSince.IsZero():
		s.youngSince = now
		return wait
	case now.Sub(s.youngSince) < minAgeMax:
		return wait
	default:
		wait = max(wait, restlessTime)
	}
	if changed || !s.synced {
		s.resolve(now)
		s.deliver(wait == 0, changed, now)
	}
	return wait
}

// load updates the contents of the files, but not yet what they serve.
func (s *Source) load(dir string, names []string, full bool) (wait time.Duration, changed bool) {
	for _, name := range names {
		f := s.files[name]
		if f == nil {
			f = &file{name: name}
			s.files[name] = f
		}
		f.missing, f.gone = time.Time{}, false
		young := f.load(dir, full, s.minAge, target{s.store.Self().Name, s.pods != nil})
		if restless := young > 0; restless != f.restless {
			f.restless, f.dirty = restless, true
		}
		wait = max(wait, young)
	}
	for name, f := range s.files {
		if !slices.Contains(names, name) {
			wait = max(wait, f.miss(s.minAge))
			f.dirty = f.dirty || f.gone
		}
		changed = changed || f.dirty
	}
	return wait, changed
}

func (s *Source) pathError(err error) *FileError {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	e := &FileError{File: s.path, Message: "read manifests: " + err.Error(), Since: time.Now()}
	if s.pathErr.same(e) {
		return s.pathErr
	}
	return e
}

func (s *Source) sorted() []*file {
	list := make([]*file, 0, len(s.files))
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		list = append(list, s.files[name])
	}
	return list
}

// manifests returns the directory of the manifests and the names of the files in it.
func manifests(path string) (dir string, names []string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", nil, err
	}
	if !info.IsDir() {
		return filepath.Dir(path), []string{filepath.Base(path)}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", nil, err
	}
	for _, entry := range entries {
		if isManifest(entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return path, names, nil
}

func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// links identifies what may be swapped to change all manifests at once: the path itself, and the
// link ..data that a mounted ConfigMap keeps beside its files.
type links struct {
	real       string // where the path leads
	path, data stamp
}

// generation returns the current state of the links. It differs after every swap, even one back to
// an earlier target.
func generation(path string) links {
	var l links
	l.real = resolved(path)
	if info, err := os.Lstat(path); err == nil && !info.IsDir() {
		l.path = stampOf(info)
	}
	if info, err := os.Lstat(filepath.Join(path, "..data")); err == nil {
		l.data = stampOf(info)
	}
	return l
}
