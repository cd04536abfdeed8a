// Package file is the source that needs no Kubernetes. It reads ordinary manifests from a directory
// or a file, and reads them again whenever they change.
//
// # What is read
//
// The source reads all regular files *.yaml, *.yml and *.json directly in the directory whose names
// do not start with a dot, and follows symbolic links. Each file may hold several documents and
// Lists of the kinds Service, EndpointSlice, Node, Namespace, Pod, ServiceCIDR and SocketAcceleration. Decoding
// is strict, and the API server's defaults are applied, but nothing is allocated: a Service without
// clusterIP is served on its externalIPs and load balancer addresses, and reported if it has none.
// Pods that name another node are left out.
//
// # What happens when something is wrong
//
// If a file cannot be read or decoded, or holds an object that another file holds already, its last
// valid objects stay, and the other files are updated. Everything also stays while the path itself
// cannot be read, and while a file is empty: a shell's redirection empties a file before it writes
// the new contents.
//
// An invalid file has no last valid objects when the agent starts. The valid files are then served,
// but the store is not told that it knows everything, so nothing that the invalid file may hold is
// deleted until all files have been valid at the same time.
//
// # Atomic changes
//
// Nothing is delivered while any file is younger than a few milliseconds, so that a change of
// several files is seen as one and a half-written file is not read. To be certain, write a new file
// and rename it over the old one, or swap a symbolic link to a directory, as Kubernetes does for a
// ConfigMap.
package file

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
	"github.com/fsnotify/fsnotify"
)

const (
	minAge    = 10 * time.Millisecond // how long a file must be unchanged before it is read
	minAgeMax = time.Second           // how long a restless file may delay the others
	// restlessTime is how often the files are scanned if one is still restless after that.
	restlessTime = 100 * time.Millisecond
	rescanTime   = time.Minute // a full rescan finds changes without an event
	pollTime     = time.Second // the same if a directory cannot be watched
)

// Source keeps a Store up to date with the manifests at a path.
type Source struct {
	path  string
	store *model.Store
	pods  source.PodReceiver // nil unless policies are followed
	log   *slog.Logger

	// Changed by tests.
	minAge, rescan, poll time.Duration
	scanned              func() // called after each scan
	notify               func(buffer uint) (*fsnotify.Watcher, error)

	// The fields below belong to the goroutine in Run.
	files        map[string]*file
	pathErr      *FileError
	synced       bool      // all files have been valid at the same time
	youngSince   time.Time // since when delivery has been delayed
	lastReload   time.Time
	lastReported map[string]string

	mu     sync.Mutex
	status Status
}

// New returns a Source for the directory or file at path, which need not exist yet. It reads
// nothing before Run.
func New(path string, store *model.Store, log *slog.Logger) *Source {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return &Source{
		path:         path,
		store:        store,
		log:          log,
		minAge:       minAge,
		rescan:       rescanTime,
		poll:         pollTime,
		scanned:      func() {},
		notify:       fsnotify.NewBufferedWatcher,
		files:        map[string]*file{},
		lastReported: map[string]string{},
		status:       Status{Path: path},
	}
}

// FollowPolicies makes the Source accept NetworkPolicies and ClusterNetworkPolicies, and deliver the
// pods of all nodes to pods. It is for before Run.
func (s *Source) FollowPolicies(pods source.PodReceiver) { s.pods = pods }

// Run loads the manifests and follows their changes until ctx ends, then returns nil. It logs
// errors and shows them in Status. It may be called once.
func (s *Source) Run(ctx context.Context) error {
	w := newWatcher(s.notify, s.log)
	defer w.close()
	var lastFull time.Time
	for {
		full := time.Since(lastFull) >= s.rescan
		// Watch before scanning, so that a change in between causes another scan and is not missed.
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

// sleep returns false if ctx ended first.
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
