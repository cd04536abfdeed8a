// Package file is the source of objects that needs no Kubernetes: ordinary manifests in a directory or in one file,
// loaded again whenever they change.
//
// # What is read
//
// All regular files *.yaml, *.yml and *.json directly in the directory whose names do not start with a dot; symbolic
// links are followed. Each may hold several documents and Lists of the kinds Service, EndpointSlice, Node, Namespace,
// Pod and SocketAcceleration. Decoding is strict, the defaults of the API server are applied, and nothing is allocated: a Service
// without clusterIP is served on its externalIPs and load balancer addresses, and reported if it has none. Pods that
// name another node are left out.
//
// # What happens when something is wrong
//
// A file that cannot be read or decoded, or that holds an object which another file holds already, keeps the objects
// that it had when it was last right; the other files are updated. So does everything while the path itself cannot be
// read, and a file that was emptied but not removed, as a shell's redirection does before the new contents come.
//
// At the start a wrong file has no such last state. The right ones are then served, but the store is not told that it
// knows everything, so nothing that the wrong file may hold is deleted, until every file has been right at once.
//
// # Atomic changes
//
// Nothing is delivered while any file is younger than a few milliseconds: a change of several files is seen as one,
// and a file that is being written is not read half. Who needs more than that writes a new file and renames it over
// the old one, or swaps a symbolic link to a directory, as Kubernetes does for a ConfigMap.
package file

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"github.com/fsnotify/fsnotify"
)

const (
	settleTime = 10 * time.Millisecond // how long a file must have been left alone to be read
	settleMax  = time.Second           // how long one restless file may hold up the others
	// restlessTime is how often files are looked at while one is still restless after that.
	restlessTime = 100 * time.Millisecond
	rescanTime   = time.Minute // a full rescan makes up for events that no one sent
	pollTime     = time.Second // the same where no directory can be watched
)

// Source keeps a Store up to date with the manifests at a path.
type Source struct {
	path  string
	store *model.Store
	log   *slog.Logger

	// Tests change these.
	settle, rescan, poll time.Duration
	scanned              func() // called after each scan
	notify               func(buffer uint) (*fsnotify.Watcher, error)

	// What follows belongs to the goroutine in Run.
	files        map[string]*file
	pathErr      *FileError
	synced       bool      // all files were right at once
	unsettled    time.Time // since when delivery is put off
	lastReload   time.Time
	lastReported map[string]string

	mu     sync.Mutex
	status Status
}

// New returns a Source of the directory or file at path, which need not exist yet. Nothing is read before Run.
func New(path string, store *model.Store, log *slog.Logger) *Source {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return &Source{
		path:         path,
		store:        store,
		log:          log,
		settle:       settleTime,
		rescan:       rescanTime,
		poll:         pollTime,
		scanned:      func() {},
		notify:       fsnotify.NewBufferedWatcher,
		files:        map[string]*file{},
		lastReported: map[string]string{},
		status:       Status{Path: path},
	}
}

// Run loads the manifests and follows their changes until ctx ends, then returns nil. What goes wrong meanwhile is
// logged and in Status. Run may be called once.
func (s *Source) Run(ctx context.Context) error {
	w := newWatcher(s.notify, s.log)
	defer w.close()
	var lastFull time.Time
	for {
		full := time.Since(lastFull) >= s.rescan
		// Watched before it is read: a change in between makes another scan, never a missed one.
		w.drain()
		w.follow(s.path)
		wait := s.scan(full)
		s.publish(w.watching())
		s.scanned()
		if wait > 0 {
			if !sleep(ctx, wait) {
				return nil
			}
			continue
		}
		if full {
			lastFull = time.Now()
		}
		wait = time.Until(lastFull.Add(s.rescan))
		if !w.watching() {
			wait = min(wait, s.poll)
		}
		if !w.wait(ctx, wait) {
			return nil
		}
	}
}

// sleep returns false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
