package file

import (
	"fmt"
	"time"
)

// claim says where an object is defined.
type claim struct {
	file *file
	line int
}

// resolve decides what each file serves from now on: its current contents, or what it served before
// if the file is invalid or one of its objects belongs to another file.
//
// If two files define the same object, the file that has been serving it keeps it; if neither has,
// the first by name gets it. A file that falls back may then serve objects that have moved to
// another file, which therefore falls back too.
func (s *Source) resolve(now time.Time) {
	for name, f := range s.files {
		if f.gone {
			delete(s.files, name)
		}
	}
	files := s.sorted()
	errs := map[*file]*FileError{}
	for _, f := range files {
		switch {
		case f.restless: // reported only after the file has been restless for minAgeMax
			errs[f] = &FileError{File: f.name, Message: "read file: it keeps changing: write a new file and rename it over this one"}
		case f.bad != nil:
			errs[f] = f.bad
		}
	}
	for {
		loser, err := conflict(files, errs)
		if loser == nil {
			break
		}
		errs[loser] = err
	}
	for _, f := range files {
		f.dirty = false
		err := errs[f]
		if err == nil {
			f.served, f.err = f.parsed, nil
			continue
		}
		if !f.err.same(err) {
			err.Since = now
			f.err = err
		}
	}
}

// conflict returns a file that must fall back and the reason, or nil if there is none. Files with
// an error have fallen back already, and what they serve never conflicts with each other.
func conflict(files []*file, errs map[*file]*FileError) (*file, *FileError) {
	claims := map[key]claim{}
	for _, f := range files {
		if errs[f] == nil {
			continue
		}
		for i := range f.served {
			claims[f.served[i].key] = claim{f, f.served[i].line}
		}
	}
	for _, f := range files {
		if errs[f] != nil {
			continue
		}
		for i := range f.parsed {
			object := &f.parsed[i]
			mine := claim{f, object.line}
			other, taken := claims[object.key]
			if !taken {
				claims[object.key] = mine
				continue
			}
			if errs[other.file] == nil && f.serves(object.key) {
				mine, other = other, mine
			}
			return mine.file, &FileError{
				File: mine.file.name,
				Line: mine.line,
				Message: fmt.Sprintf("%s is also at %s:%d: keep it in one of the files",
					object.key, other.file.name, other.line),
			}
		}
	}
	return nil, nil
}

func (f *file) serves(k key) bool {
	for i := range f.served {
		if f.served[i].key == k {
			return true
		}
	}
	return false
}
