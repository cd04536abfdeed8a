package file

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// TestWatchOfWhatComesMeanwhile checks that a directory that appears between the plan and its watch
// is noticed, and so are the files in it.
func TestWatchOfWhatComesMeanwhile(t *testing.T) {
	root := t.TempDir()
	deep := filepath.Join(root, "deep")
	w := newWatcher(func(buffer uint) (*fsnotify.Watcher, error) { // called after the plan was made
		if err := os.Mkdir(deep, 0o755); err != nil {
			return nil, err
		}
		return fsnotify.NewBufferedWatcher(buffer)
	}, slog.New(slog.DiscardHandler))
	defer w.close()
	path := filepath.Join(deep, "down")
	w.follow(path)
	w.drain()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if !w.wait(ctx, time.Hour) {
		t.Error("the new file was not noticed")
	}
}
