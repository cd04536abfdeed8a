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

// Follow calls take with the contents of the file at path, or the reason why it cannot be read:
// once at first, and then whenever the file or a link on the way to it changes. It may repeat the
// same contents. Follow returns nil when ctx ends.
func Follow(ctx context.Context, path string, log *slog.Logger, take func(data []byte, err error)) error {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	w := newWatcher(fsnotify.NewBufferedWatcher, log)
	defer w.close()
	var restless time.Time // since when the file has been changing
	for {
		// Watch before reading, so that a change in between causes another read and is not missed.
		w.drain()
		w.follow(path)
		before := generation(path)
		data, info, err := read(path)
		changing := generation(path) != before || errors.Is(err, fs.ErrNotExist) ||
			err == nil && (int64(len(data)) != info.Size() || time.Since(info.ModTime()) < minAge)
		if changing && restless.IsZero() {
			restless = time.Now()
		}
		if changing && time.Since(restless) < minAgeMax/10 {
			if !sleep(ctx, minAge) {
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
