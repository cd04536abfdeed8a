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

// Keeper has what the last good version of a file says. All methods may be called from several goroutines.
type Keeper struct {
	path    string
	copy    string // of the last good version, for the next agent
	log     *slog.Logger
	changed chan struct{}
	ready   chan struct{} // closed once the file was looked at

	mu   sync.Mutex
	data []byte // of the last good version
	is   Rules
	err  error // of the present one
}

// NewKeeper returns a Keeper for the file at path, which keeps a copy in a directory that is there, and begins with the copy of an earlier
// one.
func NewKeeper(path, dir string, log *slog.Logger) *Keeper {
	k := &Keeper{
		path: path, copy: filepath.Join(dir, "masquerade-config"), log: log,
		changed: make(chan struct{}, 1), ready: make(chan struct{}), err: errors.New("it was not looked at yet"),
	}
	data, err := os.ReadFile(k.copy)
	if err == nil {
		var rules *Rules
		if rules, err = Parse(data); err == nil {
			k.data, k.is = data, *rules
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("the copy of the last masquerade configuration cannot be used", "file", k.copy, "error", err)
	}
	return k
}

// Take takes what the file holds now, or why it cannot be read. What cannot be used changes nothing, and is told once.
func (k *Keeper) Take(data []byte, err error) {
	var rules *Rules
	if err == nil {
		rules, err = Parse(data)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	defer k.looked()
	if err != nil {
		if k.err == nil || k.err.Error() != err.Error() {
			k.log.Error("the masquerade configuration cannot be used; the last good one holds", "file", k.path, "error", err)
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
		k.log.Info("resyncInterval of the masquerade configuration is ignored: changes of the file are noticed by themselves", "file", k.path)
	}
	if err := keepCopy(k.copy, data); err != nil {
		k.log.Warn("the next agent would not know this masquerade configuration, should the file be bad then", "error", err)
	}
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// looked notes that the file was looked at.
func (k *Keeper) looked() {
	select {
	case <-k.ready:
	default:
		close(k.ready)
	}
}

func keepCopy(path string, data []byte) error {
	temp := path + ".new"
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return fmt.Errorf("keep a copy: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("keep a copy: %w", err)
	}
	return nil
}

// Ready is closed once the file was looked at.
func (k *Keeper) Ready() <-chan struct{} { return k.ready }

// Changed is signalled when the file says something else. It has one reader.
func (k *Keeper) Changed() <-chan struct{} { return k.changed }

// Native returns the networks to which pods speak under their own addresses, and why the file that is there now cannot be used.
func (k *Keeper) Native() ([]netip.Prefix, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.is.Native, k.err
}
