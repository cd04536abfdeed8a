package file

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestFollow follows a file through the links of a mounted ConfigMap, while it is written in place,
// removed, and not yet there.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "mounted", "config")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	type content struct {
		data string
		err  error
	}
	seen := make(chan content, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Follow(ctx, path, slog.New(slog.DiscardHandler), func(data []byte, err error) { seen <- content{string(data), err} })
	}()
	waitFor := func(what string, is func(content) bool) {
		t.Helper()
		late := time.After(20 * time.Second) // earlier than the rescan, which needs no event
		for {
			select {
			case c := <-seen:
				if is(c) {
					return
				}
			case <-late:
				t.Fatalf("%s is not seen", what)
			}
		}
	}
	holds := func(data string) func(content) bool {
		return func(c content) bool { return c.err == nil && c.data == data }
	}
	away := func(c content) bool { return errors.Is(c.err, fs.ErrNotExist) }
	// Do as the kubelet does: config -> ..data/config, and ..data -> a directory with the version.
	publish := func(version, data string) {
		t.Helper()
		mounted := filepath.Dir(path)
		must(os.MkdirAll(filepath.Join(mounted, version), 0o755))
		must(os.WriteFile(filepath.Join(mounted, version, "config"), []byte(data), 0o644))
		must(os.Symlink(version, filepath.Join(mounted, "..data_tmp")))
		must(os.Rename(filepath.Join(mounted, "..data_tmp"), filepath.Join(mounted, "..data")))
	}
	waitFor("that the file does not exist", away)
	publish("..1", "one")
	must(os.Symlink("..data/config", path))
	waitFor("the first version", holds("one"))
	publish("..2", "two")
	must(os.RemoveAll(filepath.Join(filepath.Dir(path), "..1")))
	waitFor("the second version", holds("two"))
	must(os.WriteFile(filepath.Join(filepath.Dir(path), "..2", "config"), []byte("two in place"), 0o644))
	waitFor("what was written in place", holds("two in place"))
	must(os.Remove(path))
	waitFor("that the file is gone", away)
	must(os.Mkdir(path, 0o755))
	waitFor("that it is not a file", func(c content) bool { return c.err != nil && !errors.Is(c.err, fs.ErrNotExist) })
	must(os.Remove(path))
	must(os.WriteFile(path+".new", []byte("three"), 0o644))
	must(os.Rename(path+".new", path))
	waitFor("a file in its place", holds("three"))
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Follow returned %v", err)
	}
}
