package file

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Follow gives take what the one file at a path holds, or why it cannot be read: at first, and whenever something happened to it or to
// a link on the way there, until ctx ends; then it returns nil. The same may be given again.
func Follow(ctx context.Context, path string, log *slog.Logger, take func(data []byte, err error)) error {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	w := newWatcher(fsnotify.NewBufferedWatcher, log)
	defer w.close()
	var restless time.Time // since when it is being changed
	for {
		// Watched before it is read: a change in between makes another look, never a missed one.
		w.drain()
		w.follow(path)
		before := generation(path)
		data, info, err := read(path)
		changing := generation(path) != before || errors.Is(err, fs.ErrNotExist) ||
			err == nil && (int64(len(data)) != info.Size() || time.Since(info.ModTime()) < settleTime)
		if changing && restless.IsZero() {
			restless = time.Now()
		}
		if changing && time.Since(restless) < settleMax/10 {
			if !sleep(ctx, settleTime) {
				return nil
			}
			continue
		}
		restless = time.Time{}
		take(data, err)
		wait := rescanTime
		if changing || !w.watching() {
			wait = pollTime
		}
		if !w.wait(ctx, wait) {
			return nil
		}
	}
}
