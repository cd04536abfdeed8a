package masquerade

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
)

// RuleFile holds the rules of the last good version of a file. Its methods may be called
// concurrently.
type RuleFile struct {
	path    string
	copy    string // of the last good version, for the next agent
	log     *slog.Logger
	changed chan struct{}
	ready   chan struct{} // closed after the first look at the file

	mu   sync.Mutex
	data []byte // the last good version
	is   Rules  // parsed data
	err  error  // why the present version cannot be used
}

// NewRuleFile returns a RuleFile for the file at path. It keeps a copy of the last good version in dir,
// which has to exist, and starts with the copy of an earlier RuleFile.
func NewRuleFile(path, dir string, log *slog.Logger) *RuleFile {
	k := &RuleFile{
		path: path, copy: filepath.Join(dir, "masquerade-config"), log: log,
		changed: make(chan struct{}, 1), ready: make(chan struct{}), err: errors.New("it has not been read yet"),
	}
	data, err := os.ReadFile(k.copy)
	if err == nil {
		var rules *Rules
		if rules, err = Parse(data); err == nil {
			k.data, k.is = data, *rules
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("cannot use the copy of the last masquerade configuration", "file", k.copy, "error", err)
	}
	return k
}

// Take passes the content of the file, or the error of reading it. A version that cannot be used
// changes nothing and is logged once.
func (k *RuleFile) Take(data []byte, err error) {
	var rules *Rules
	if err == nil {
		rules, err = Parse(data)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.markReady()
	if err != nil {
		if k.err == nil || k.err.Error() != err.Error() {
			k.log.Error("cannot use the masquerade configuration; the last good one stays in effect",
				"file", k.path, "error", err)
		}
		k.err = err
		return
	}
	same := k.data != nil && bytes.Equal(k.data, data)
	if k.err = nil; same {
		return
	}
	k.data, k.is = bytes.Clone(data), *rules
	k.log.Info("read the masquerade configuration", "file", k.path, "networks", len(rules.Native))
	if rules.Interval {
		k.log.Info("ignoring resyncInterval of the masquerade configuration: changes of the file take effect at once",
			"file", k.path)
	}
	if err := saveCopy(k.copy, data); err != nil {
		k.log.Warn("cannot keep a copy of the masquerade configuration for the next agent, in case the file is bad then",
			"error", err)
	}
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// markReady closes ready, once.
func (k *RuleFile) markReady() {
	select {
	case <-k.ready:
	default:
		close(k.ready)
	}
}

func saveCopy(path string, data []byte) error {
	temp := path + ".new"
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return fmt.Errorf("write the copy: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("write the copy: %w", err)
	}
	return nil
}

// Ready is closed after the first look at the file.
func (k *RuleFile) Ready() <-chan struct{} { return k.ready }

// Changed signals that the rules have changed. It is for a single reader.
func (k *RuleFile) Changed() <-chan struct{} { return k.changed }

// Native returns the networks to which pods keep their own addresses, and why the present version
// of the file cannot be used.
func (k *RuleFile) Native() ([]netip.Prefix, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.is.Native, k.err
}

// Status returns the state of the file, or nil without one.
func (k *RuleFile) Status() *Status {
	if k == nil {
		return nil
	}
	native, err := k.Native()
	s := &Status{File: k.path, Networks: len(native)}
	if err != nil {
		s.Error = err.Error()
	}
	return s
}
