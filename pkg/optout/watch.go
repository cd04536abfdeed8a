package optout

import (
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"
)

// watch reports that something happened in some directories. Without inotify it reports nothing,
// and a change is noticed at the next change of a pod or the next check.
type watch struct {
	log        *slog.Logger
	notify     *fsnotify.Watcher // nil without inotify
	lastLogged string            // last error logged
}

func newWatch(log *slog.Logger) *watch {
	w := &watch{log: log}
	// The buffer lets a burst of events end in a single look.
	notify, err := fsnotify.NewBufferedWatcher(1024)
	if err != nil {
		w.fail(err)
		return w
	}
	w.notify = notify
	return w
}

func (w *watch) close() {
	if w.notify != nil {
		w.notify.Close()
	}
}

// set sets the directories to watch, or for one that does not exist, its nearest existing ancestor.
// It reports whether any is newly watched: earlier events in that were missed.
func (w *watch) set(dirs []string) bool {
	if w.notify == nil {
		return false
	}
	was := w.notify.WatchList()
	var is []string
	var failed error
	for _, dir := range dirs {
		// Add those already watched too: the name may belong to another directory by now.
		watched, err := w.add(dir)
		if err != nil {
			failed = err
			continue
		}
		is = append(is, watched)
	}
	for _, dir := range was {
		if !slices.Contains(is, dir) {
			_ = w.notify.Remove(dir) // an error means that the kernel removed it first
		}
	}
	w.fail(failed)
	return slices.ContainsFunc(is, func(dir string) bool { return !slices.Contains(was, dir) })
}

func (w *watch) add(dir string) (string, error) {
	for dir = filepath.Clean(dir); ; {
		err := w.notify.Add(dir)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return dir, err
		}
		dir = filepath.Dir(dir)
	}
}

func (w *watch) fail(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != w.lastLogged && text != "" {
		w.log.Warn("cannot watch the directories of pods: looking for pods that have opted out from time to time instead", "error", err)
	}
	w.lastLogged = text
}

// events returns the channels to wait on, nil without inotify.
func (w *watch) events() (<-chan fsnotify.Event, <-chan error) {
	if w.notify == nil {
		return nil, nil
	}
	return w.notify.Events, w.notify.Errors
}

// drain discards the events so far, since a look follows that sees what caused them.
func (w *watch) drain() {
	events, errs := w.events()
	for {
		select {
		case <-events:
		case <-errs:
		default:
			return
		}
	}
}
