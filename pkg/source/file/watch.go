package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// plan says which directories to watch for one path.
type plan struct {
	path, real string // real is path with links resolved, or "" if it leads nowhere
	// content directories hold manifests, so all events in them matter. rangeEpochs are only on the way
	// there.
	content     map[string]bool
	rangeEpochs map[string]bool
}

// watchPlan returns what to watch in the current state: the directory of the manifests, the
// directories that links in it lead to, and the nearest existing parent, in which the path can
// appear, disappear or be swapped.
func watchPlan(path string) plan {
	p := plan{path: path, real: resolved(path), content: map[string]bool{}, rangeEpochs: map[string]bool{}}
	for _, end := range []string{path, p.real} {
		if end == "" {
			continue
		}
		parent := filepath.Dir(end)
		for !isDir(parent) && parent != filepath.Dir(parent) {
			parent = filepath.Dir(parent)
		}
		p.rangeEpochs[parent] = true
	}
	dir, names, err := manifests(path)
	if err != nil {
		return p
	}
	p.content[dir] = true
	for _, name := range names {
		full := filepath.Join(dir, name)
		if info, err := os.Lstat(full); err != nil || info.Mode().Type() != os.ModeSymlink {
			continue
		}
		if real := resolved(full); real != "" {
			p.content[filepath.Dir(real)] = true
		}
	}
	return p
}

func resolved(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return real
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// concerns reports whether an event for name may change what a scan finds.
func (p *plan) concerns(name string) bool {
	return p.content[filepath.Dir(name)] || p.content[name] || p.rangeEpochs[name] || name == p.path || name == p.real ||
		strings.HasPrefix(p.path, name+"/") || strings.HasPrefix(p.real, name+"/")
}

// watcher reports events in the directories of a plan. Without inotify it only waits for the time.
type watcher struct {
	start  func(buffer uint) (*fsnotify.Watcher, error)
	log    *slog.Logger
	notify *fsnotify.Watcher // nil if inotify could not be started
	plan   plan
	// dirs are the watched directories, to notice when a name leads to another one.
	dirs   map[string]os.FileInfo
	failed string // the last error that was logged
}

func newWatcher(start func(uint) (*fsnotify.Watcher, error), log *slog.Logger) *watcher {
	return &watcher{start: start, log: log, dirs: map[string]os.FileInfo{}}
}

func (w *watcher) close() {
	if w.notify != nil {
		w.notify.Close()
		w.notify = nil
	}
}

// watching reports whether all directories of the plan are watched.
func (w *watcher) watching() bool { return w.notify != nil && w.failed == "" }

// maxPlans limits how often follow makes a new plan because things changed before it watched them.
const maxPlans = 8

// follow watches what there is to watch for a path. Changes between making the plan and watching
// its directories cause no event, so follow compares the plan with a new one afterward.
func (w *watcher) follow(path string) {
	for range maxPlans {
		w.watch(watchPlan(path))
		if reflect.DeepEqual(w.plan, watchPlan(path)) {
			return
		}
	}
}

// watch watches the directories of the plan, and no others.
func (w *watcher) watch(p plan) {
	w.plan = p
	if w.notify == nil {
		// The buffer lets a burst of events end in one scan.
		notify, err := w.start(1024)
		if err != nil {
			w.fail(fmt.Errorf("start inotify: %w", err))
			return
		}
		w.notify = notify
	}
	want := maps.Clone(p.rangeEpochs)
	maps.Copy(want, p.content)
	for dir, was := range w.dirs {
		now, err := os.Stat(dir)
		if !want[dir] || err != nil || !os.SameFile(was, now) {
			_ = w.notify.Remove(dir) // fails if the kernel removed the watch first
			delete(w.dirs, dir)
		}
	}
	for dir := range want {
		info, err := os.Stat(dir)
		if err == nil {
			// Add it even if it is watched already: the inode number may be that of a removed
			// directory.
			err = w.notify.Add(dir)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since the plan was made; a parent directory reports it
		}
		if err != nil {
			w.fail(fmt.Errorf("watch %s: %w", dir, err))
			return
		}
		w.dirs[dir] = info
	}
	if w.failed != "" {
		w.log.Info("watching manifests again")
		w.failed = ""
	}
}

func (w *watcher) fail(err error) {
	if w.failed != err.Error() {
		w.log.Warn("cannot watch manifests, reading them from time to time instead", "error", err)
		w.failed = err.Error()
	}
}

// wait returns true when something happened or the time is over, and false when ctx ends.
func (w *watcher) wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	var events <-chan fsnotify.Event
	var errs <-chan error
	if w.notify != nil {
		events, errs = w.notify.Events, w.notify.Errors
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-errs: // events were lost
			return true
		case event := <-events:
			if w.plan.concerns(event.Name) {
				return true
			}
		}
	}
}

// drain discards the events up to now. A scan that sees their effects follows.
func (w *watcher) drain() {
	if w.notify == nil {
		return
	}
	for {
		select {
		case <-w.notify.Events:
		case <-w.notify.Errors:
		default:
			return
		}
	}
}
