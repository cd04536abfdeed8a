package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// These tests end long before the rescan of every minute, so what they wait for must come from
// events.

func TestReload(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.start()
	r.eventually("a=10.0.0.1", "")
	r.write("a.yaml", service("a", "10.0.0.2"))
	r.eventually("a=10.0.0.2", "")
	r.write("b.yaml", service("b", "10.0.0.3"))
	r.eventually("a=10.0.0.2 b=10.0.0.3", "")
	r.replace("a.yaml", service("a", "10.0.0.4"))
	r.eventually("a=10.0.0.4 b=10.0.0.3", "")
	r.must(os.Rename(r.path("b.yaml"), r.path("c.yaml")))
	r.eventually("a=10.0.0.4 b=10.0.0.3", "")
	r.must(os.Remove(r.path("a.yaml")))
	r.eventually("b=10.0.0.3", "")
	r.write("c.yaml", "apiVersion: v1\nkind: Secret\n")
	r.eventually("b=10.0.0.3", "c.yaml:2")
	r.write("c.yaml", service("b", "10.0.0.5"))
	r.eventually("b=10.0.0.5", "")
	if status := r.source.Status(); !status.Watching || status.LastReload.IsZero() {
		t.Errorf("got status %+v", status)
	}
}

// configMap lays out a directory as the kubelet does: files are links through ..data, which is
// swapped.
type configMap struct {
	*rig
	version int
}

func (c *configMap) update(files map[string]string) {
	c.Helper()
	old, _ := os.Readlink(c.path("..data"))
	c.version++
	version := "..version" + string(rune('0'+c.version))
	c.must(os.Mkdir(c.path(version), 0o755))
	for name, text := range files {
		c.write(filepath.Join(version, name), text)
	}
	c.must(os.Symlink(version, c.path("..data_tmp")))
	c.must(os.Rename(c.path("..data_tmp"), c.path("..data")))
	for name := range files {
		if _, err := os.Lstat(c.path(name)); err != nil {
			c.must(os.Symlink(filepath.Join("..data", name), c.path(name)))
		}
	}
	if old != "" {
		c.must(os.RemoveAll(c.path(old)))
	}
}

func TestReloadOfAConfigMap(t *testing.T) {
	c := configMap{rig: newRig(t, t.TempDir())}
	c.update(map[string]string{"a.yaml": service("a", "10.0.0.1"), "b.yaml": service("b", "10.0.0.2")})
	c.start()
	c.eventually("a=10.0.0.1 b=10.0.0.2", "")
	c.update(map[string]string{"a.yaml": service("a", "10.0.0.3"), "b.yaml": service("b", "10.0.0.4")})
	c.eventually("a=10.0.0.3 b=10.0.0.4", "")
	c.update(map[string]string{"a.yaml": service("b", "10.0.0.4"), "b.yaml": service("a", "10.0.0.5")})
	c.eventually("a=10.0.0.5 b=10.0.0.4", "")
	c.update(map[string]string{"a.yaml": service("b", "10.0.0.4"), "b.yaml": "", "c.yaml": service("c", "10.0.0.6")})
	c.eventually("a=10.0.0.5 b=10.0.0.4 c=10.0.0.6", "b.yaml:0")
	c.update(map[string]string{"a.yaml": service("b", "10.0.0.4"), "c.yaml": service("c", "10.0.0.6")})
	c.must(os.Remove(c.path("b.yaml")))
	c.eventually("b=10.0.0.4 c=10.0.0.6", "")
}

func TestReloadOfOneFileInAConfigMap(t *testing.T) {
	c := configMap{rig: newRig(t, t.TempDir())}
	c.update(map[string]string{"a.yaml": service("a", "10.0.0.1"), "b.yaml": service("b", "10.0.0.2")})
	c.source.path = c.path("a.yaml")
	c.start()
	c.eventually("a=10.0.0.1", "")
	c.update(map[string]string{"a.yaml": service("a", "10.0.0.3"), "b.yaml": service("b", "10.0.0.4")})
	c.eventually("a=10.0.0.3", "")
}

func TestReloadOfOneFile(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("manifest", service("a", "10.0.0.1")) // any name is allowed
	r.write("other.yaml", "nonsense")
	r.source.path = r.path("manifest")
	r.start()
	r.eventually("a=10.0.0.1", "")
	r.replace("manifest", service("a", "10.0.0.2"))
	r.eventually("a=10.0.0.2", "")
	r.must(os.Rename(r.path("manifest"), r.path("manifest~")))
	r.eventually("a=10.0.0.2", "manifest:0")
	r.write("manifest", service("a", "10.0.0.3"))
	r.eventually("a=10.0.0.3", "")
}

func TestReloadThroughALinkToAFile(t *testing.T) {
	r := newRig(t, t.TempDir())
	elsewhere := filepath.Join(t.TempDir(), "real.yaml")
	r.must(os.WriteFile(elsewhere, []byte(service("a", "10.0.0.1")), 0o644))
	r.must(os.Symlink(elsewhere, r.path("a.yaml")))
	r.start()
	r.eventually("a=10.0.0.1", "")
	r.must(os.WriteFile(elsewhere, []byte(service("a", "10.0.0.2")), 0o644))
	r.eventually("a=10.0.0.2", "")
}

func TestReloadThroughALinkToADirectory(t *testing.T) {
	parent := t.TempDir()
	r := newRig(t, filepath.Join(parent, "current"))
	for version, addr := range map[string]string{"v1": "10.0.0.1", "v2": "10.0.0.2"} {
		r.must(os.Mkdir(filepath.Join(parent, version), 0o755))
		r.must(os.WriteFile(filepath.Join(parent, version, "a.yaml"), []byte(service("a", addr)), 0o644))
	}
	r.must(os.Symlink("v1", r.dir))
	r.start()
	r.eventually("a=10.0.0.1", "")
	r.must(os.Symlink("v2", r.dir+".new"))
	r.must(os.Rename(r.dir+".new", r.dir))
	r.eventually("a=10.0.0.2", "")
	r.write("a.yaml", service("a", "10.0.0.3"))
	r.eventually("a=10.0.0.3", "")
}

func TestReloadOfADirectoryThatComesAndGoes(t *testing.T) {
	parent := t.TempDir()
	r := newRig(t, filepath.Join(parent, "deep", "down"))
	r.start()
	r.eventually("", "down:0")
	for i, addr := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
		r.must(os.MkdirAll(r.dir, 0o755))
		r.write("a.yaml", service("a", addr))
		r.eventually("a="+addr, "")
		r.write("b.yaml", service("b", "10.0.0.9"))
		r.eventually("a="+addr+" b=10.0.0.9", "")
		if i == 0 {
			r.must(os.RemoveAll(r.dir)) // the next one may get the same inode
		} else {
			r.must(os.RemoveAll(filepath.Dir(r.dir)))
		}
		r.eventually("a="+addr+" b=10.0.0.9", "down:0")
	}
}

// TestReloadSeesOnlyWholeChanges keeps rewriting a file in place, and never misses a Service.
func TestReloadSeesOnlyWholeChanges(t *testing.T) {
	r := newRig(t, t.TempDir())
	both := func(addr string) string { return service("a", addr) + "---\n" + service("b", addr) }
	r.write("x.yaml", both("10.0.0.1"))
	var mu sync.Mutex
	var seen []string
	scanned := r.source.scanned
	r.source.scanned = func() {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.services())
		scanned()
	}
	r.start()
	r.eventually("a=10.0.0.1 b=10.0.0.1", "")
	mu.Lock()
	seen = nil
	mu.Unlock()
	for i := range 200 {
		text := both([]string{"10.0.0.2", "10.0.0.3"}[i%2])
		file, err := os.Create(r.path("x.yaml"))
		r.must(err)
		for len(text) > 0 {
			n := min(len(text), 40)
			_, err := file.WriteString(text[:n])
			r.must(err)
			text = text[n:]
		}
		r.must(file.Close())
	}
	r.eventually("a=10.0.0.3 b=10.0.0.3", "")
	mu.Lock()
	defer mu.Unlock()
	for _, services := range seen {
		switch services {
		case "a=10.0.0.1 b=10.0.0.1", "a=10.0.0.2 b=10.0.0.2", "a=10.0.0.3 b=10.0.0.3":
		default:
			t.Errorf("saw %q, half a change", services)
		}
	}
}

// TestReloadSeesOnlyWholeDirectories swaps a link back and forth while files are read. The Service
// in the middle moves between the files, so every mixture of the two versions lacks it.
func TestReloadSeesOnlyWholeDirectories(t *testing.T) {
	r := newRig(t, t.TempDir())
	first, middle, last := service("a", "10.0.0.1"), service("m", "10.0.0.2"), service("z", "10.0.0.3")
	old := time.Now().Add(-time.Hour)
	for version, files := range map[string][]string{"..v1": {first + "---\n" + middle, last}, "..v2": {first, middle + "---\n" + last}} {
		r.must(os.Mkdir(r.path(version), 0o755))
		for i, name := range []string{"a.yaml", "z.yaml"} {
			path := filepath.Join(version, name)
			r.write(path, files[i])
			r.must(os.Chtimes(r.path(path), old, old))
		}
	}
	r.must(os.Symlink("..v1", r.path("..data")))
	for _, name := range []string{"a.yaml", "z.yaml"} {
		r.must(os.Symlink(filepath.Join("..data", name), r.path(name)))
	}
	const all = "a=10.0.0.1 m=10.0.0.2 z=10.0.0.3"
	var mu sync.Mutex
	started := false
	scanned := r.source.scanned
	r.source.scanned = func() {
		mu.Lock()
		defer mu.Unlock()
		if got := r.services(); started && got != all {
			t.Errorf("saw %q, a mixture", got)
		}
		scanned()
	}
	r.start()
	r.eventually(all, "")
	mu.Lock()
	started = true
	mu.Unlock()
	for i := range 3000 {
		r.must(os.Symlink([]string{"..v2", "..v1"}[i%2], r.path("..data_tmp")))
		r.must(os.Rename(r.path("..data_tmp"), r.path("..data")))
	}
	r.eventually(all, "")
}

// TestPoll runs without inotify instances, which a machine can run out of.
func TestPoll(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.source.poll = 10 * time.Millisecond
	start := r.source.notify
	var works atomic.Bool
	r.source.notify = func(buffer uint) (*fsnotify.Watcher, error) {
		if !works.Load() {
			return nil, errors.New("no inotify instance left")
		}
		return start(buffer)
	}
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.start()
	r.eventually("a=10.0.0.1", "")
	r.write("a.yaml", service("a", "10.0.0.2"))
	r.eventually("a=10.0.0.2", "")
	if r.source.Status().Watching {
		t.Error("watching without inotify")
	}
	works.Store(true)
	for !r.source.Status().Watching {
		<-r.scans
	}
}

// TestRescan swaps a link in a directory that is not watched, which causes no event.
func TestRescan(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.source.rescan = 20 * time.Millisecond
	elsewhere := t.TempDir()
	for version, addr := range map[string]string{"v1": "10.0.0.1", "v2": "10.0.0.2"} {
		r.must(os.Mkdir(filepath.Join(elsewhere, version), 0o755))
		r.must(os.WriteFile(filepath.Join(elsewhere, version, "a.yaml"), []byte(service("a", addr)), 0o644))
	}
	r.must(os.Symlink("v1", filepath.Join(elsewhere, "current")))
	r.must(os.Symlink(filepath.Join(elsewhere, "current", "a.yaml"), r.path("a.yaml")))
	r.start()
	r.eventually("a=10.0.0.1", "")
	r.must(os.Symlink("v2", filepath.Join(elsewhere, "new")))
	r.must(os.Rename(filepath.Join(elsewhere, "new"), filepath.Join(elsewhere, "current")))
	r.eventually("a=10.0.0.2", "")
}

// TestRescanBelievesNoStamp makes new contents look as if they had been read already, so that only
// reading them can tell.
func TestRescanBelievesNoStamp(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.source.rescan = 50 * time.Millisecond
	r.write("a.yaml", service("a", "10.0.0.1"))
	scanned := r.source.scanned
	swapped := false
	r.source.scanned = func() {
		if !swapped && r.services() == "a=10.0.0.1" {
			swapped = true
			r.write("a.yaml", service("a", "10.0.0.2"))
			info, err := os.Stat(r.path("a.yaml"))
			r.must(err)
			r.source.files["a.yaml"].stamp = stampOf(info)
		}
		scanned()
	}
	r.start()
	r.eventually("a=10.0.0.2", "")
}

// TestWatchADirectoryWithTheInodeOfARemovedOne makes the watcher mistake a new directory for the
// one it watched, as happens when the file system reuses an inode number.
func TestWatchADirectoryWithTheInodeOfARemovedOne(t *testing.T) {
	r := newRig(t, filepath.Join(t.TempDir(), "manifests"))
	r.must(os.Mkdir(r.dir, 0o755))
	w := newWatcher(r.source.notify, r.source.log)
	defer w.close()
	w.watch(watchPlan(r.dir))
	r.must(os.Remove(r.dir))
	r.must(os.Mkdir(r.dir, 0o755))
	info, err := os.Stat(r.dir)
	r.must(err)
	w.dirs[r.dir] = info
	w.watch(watchPlan(r.dir))
	r.write("a.yaml", "")
	deadline := time.After(20 * time.Second)
	for {
		select {
		case event := <-w.notify.Events:
			if event.Name == r.path("a.yaml") {
				return
			}
		case <-deadline:
			t.Fatal("the new directory is not watched")
		}
	}
}

// TestWatchLetsGo checks that directories are no longer watched once no link leads to them.
func TestWatchLetsGo(t *testing.T) {
	parent := t.TempDir()
	r := newRig(t, filepath.Join(parent, "current"))
	w := newWatcher(r.source.notify, r.source.log)
	defer w.close()
	want := 0
	for i := range 5 {
		version := fmt.Sprint("v", i)
		r.must(os.Mkdir(filepath.Join(parent, version), 0o755))
		r.must(os.Symlink(version, r.dir+".new"))
		r.must(os.Rename(r.dir+".new", r.dir))
		w.watch(watchPlan(r.dir))
		got := kernelWatches(t)
		if i == 0 {
			want = got
		}
		if got != want {
			t.Errorf("%d directories are watched after %d swaps, want %d", got, i, want)
		}
	}
}

// kernelWatches counts the inotify watches of this process.
func kernelWatches(t *testing.T) int {
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, path := range infos {
		info, _ := os.ReadFile(path) // fails for the descriptor that Glob used
		n += strings.Count(string(info), "inotify wd:")
	}
	if n == 0 {
		t.Fatal("nothing is watched")
	}
	return n
}

func TestStatusFromOtherGoroutines(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.start()
	stop := make(chan struct{})
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = r.source.Status()
				}
			}
		})
	}
	r.write("a.yaml", "nonsense")
	r.eventually("", "a.yaml:1")
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.eventually("a=10.0.0.1", "")
	close(stop)
	group.Wait()
}
