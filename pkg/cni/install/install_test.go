package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

const name = "05-fairlead.conflist"

// While both files are installed a thousand times, every reader sees one complete version or the
// other, and a runtime always finds exactly one configuration.
func TestReaders(t *testing.T) {
	const rounds = 1000
	dir := t.TempDir()
	program := filepath.Join(dir, PluginName)
	programs := [][]byte{bytes.Repeat([]byte("a"), 20_000), bytes.Repeat([]byte("b"), 40_000)}
	sockets := []string{"/run/a/cni.sock", "/run/a-longer-name/cni.sock"}
	var networks [][]byte
	install := func(i int) {
		t.Helper()
		if placed, err := place(program, programs[i%2], 0o755); err != nil || !placed.Changed {
			t.Fatalf("install the program: %+v, %v", placed, err)
		}
		if placed, err := Configuration(dir, name, sockets[i%2]); err != nil || !placed.Changed {
			t.Fatalf("install the configuration: %+v, %v", placed, err)
		}
	}
	for i := range 2 {
		install(i)
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		networks = append(networks, content)
	}
	stop, seen := make(chan struct{}), map[string]int{}
	var reading sync.WaitGroup
	look := func() error {
		for path, may := range map[string][][]byte{program: programs, filepath.Join(dir, name): networks} {
			content, err := os.ReadFile(path)
			if err != nil || !slices.ContainsFunc(may, func(may []byte) bool { return bytes.Equal(may, content) }) {
				return fmt.Errorf("%s has %d bytes: %w", path, len(content), err)
			}
			seen[fmt.Sprintf("%s with %d bytes", filepath.Base(path), len(content))]++
		}
		found, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
		if err != nil || !slices.Equal(found, []string{filepath.Join(dir, name)}) {
			return fmt.Errorf("a runtime finds %q: %w", found, err)
		}
		return nil
	}
	reading.Go(func() { // only one reader, so that a processor is left for the writer
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := look(); err != nil {
				t.Error(err)
				return
			}
			runtime.Gosched()
		}
	})
	for i := range rounds {
		install(i)
	}
	close(stop)
	reading.Wait()
	if len(seen) != 4 {
		t.Error("the reader did not see both versions of both files")
	}
	t.Logf("seen %v", seen)
}

// The library of runtimes reads the configuration and takes the newest version that it knows.
func TestConfiguration(t *testing.T) {
	dir := t.TempDir()
	placed, err := Configuration(dir, name, "/run/fairlead/cni.sock")
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.ConfListFromFile(placed.Path)
	if err != nil {
		t.Fatal(err)
	}
	if list.CNIVersion != "1.1.0" || list.Name != "fairlead" || len(list.Plugins) != 1 {
		t.Errorf("configuration %+v", list)
	}
	first := list.Plugins[0]
	if first.Network.Type != PluginName || !first.Network.Capabilities["portMappings"] || !strings.Contains(string(first.Bytes), `"/run/fairlead/cni.sock"`) {
		t.Errorf("plugin configuration %s", first.Bytes)
	}
	if info, err := os.Stat(placed.Path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// place leaves a file that is right, and replaces one that only looks right.
func TestPlaceAgain(t *testing.T) {
	usual := unix.Umask(0o077) // must not matter
	t.Cleanup(func() { unix.Umask(usual) })
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "file"), filepath.Join(t.TempDir(), "victim")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(at string) {
		t.Helper()
		write(victim, "content")
		if err := errors.Join(os.RemoveAll(at), os.Symlink(victim, at)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name    string
		prepare func()
		changed bool
	}{
		{"nothing there", func() {}, true},
		{"the same", func() {}, false},
		{"another content", func() { write(path, "other") }, true},
		{"another mode", func() { _ = os.Chmod(path, 0o666) }, true},
		{"a link to the same", func() { link(path) }, true},
		{"half a file of an interrupted install", func() { write(path, "other"); write(stagedName(path), "cont") }, true},
		{"a link at the staged name", func() { write(path, "other"); link(stagedName(path)) }, true},
		{"the same again", func() {}, false},
	} {
		tt.prepare()
		before, _ := os.Lstat(path)
		placed, err := place(path, []byte("content"), 0o755)
		if err != nil || placed.Changed != tt.changed {
			t.Errorf("%s: %+v, %v", tt.name, placed, err)
		}
		after, err := os.Lstat(path)
		if err != nil || after.Mode() != 0o755 || (before != nil && os.SameFile(before, after) == tt.changed) {
			t.Errorf("%s: %v, %v", tt.name, after, err)
		}
		if content, err := os.ReadFile(path); err != nil || string(content) != "content" {
			t.Errorf("%s: %q, %v", tt.name, content, err)
		}
		if content, err := os.ReadFile(victim); err == nil && string(content) != "content" {
			t.Errorf("%s: the target of the link has content %q", tt.name, content)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("%s: left %v, %v", tt.name, entries, err)
		}
	}
}

// Concurrent calls of place do not share a staged file.
func TestPlaceTogether(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	var placing sync.WaitGroup
	for i := range 8 {
		placing.Go(func() {
			for range 40 {
				content := bytes.Repeat([]byte{byte('a' + i)}, 10_000*(i+1))
				if _, err := place(path, content, 0o755); err != nil {
					t.Error(err)
					return
				}
				found, err := os.ReadFile(path)
				if err != nil || len(found) == 0 || len(found) != 10_000*int(found[0]-'a'+1) || len(bytes.Trim(found, string(found[:1]))) > 0 {
					t.Errorf("found %d bytes, %v", len(found), err)
					return
				}
			}
		})
	}
	placing.Wait()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left %v, %v", entries, err)
	}
}

// Only what fairlead installed is removed.
func TestRemove(t *testing.T) {
	dir := t.TempDir()
	const ours = "/run/fairlead/cni.sock"
	for _, tt := range []struct {
		name, content string
		gone          bool
		refused       string
	}{
		{"none", "", false, ""},
		{"another plugin's",
			`{"name": "n", "plugins": [{"type": "bridge", "socket": "/run/fairlead/cni.sock"}]}`, false, "leaving it in place"},
		{"another agent's",
			`{"name": "n", "plugins": [{"type": "fairlead-cni", "socket": "/run/other/cni.sock"}]}`, false, "leaving it in place"},
		{"not JSON", `{`, false, "leaving it in place"},
		{"ours with another after it", `{"plugins": [{"type": "fairlead-cni", "socket": "/run/fairlead/cni.sock"}, {"type": "tuning"}]}`, true, ""},
	} {
		path := filepath.Join(dir, name)
		if tt.content != "" {
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		gone, err := RemoveConfiguration(dir, name, ours)
		if gone != tt.gone || (err == nil) != (tt.refused == "") || (err != nil && !strings.Contains(err.Error(), tt.refused)) {
			t.Errorf("%s: %v, %v", tt.name, gone, err)
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) != (tt.gone || tt.content == "") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if gone, err := RemovePlugin(dir); gone || err != nil {
		t.Errorf("no plugin: %v, %v", gone, err)
	}
	if err := os.WriteFile(filepath.Join(dir, PluginName), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if gone, err := RemovePlugin(dir); gone || err == nil || !strings.Contains(err.Error(), "leaving it in place") {
		t.Errorf("a program of that name: %v, %v", gone, err)
	}
}

// Errors say what to do.
func TestErrors(t *testing.T) {
	rig.Root(t) // for mounts
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	readOnly := t.TempDir()
	if err := unix.Mount(readOnly, readOnly, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(readOnly, 0) })
	if err := unix.Mount("", readOnly, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		filepath.Join(dir, "none"): "create directory",
		file:                       "create directory",
		readOnly:                   "is read-only",
	} {
		if _, err := Configuration(dir, name, "/run/fairlead/cni.sock"); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v, want %q", dir, err, want)
		}
	}
	if _, err := Plugin(filepath.Join(dir, "none"), dir); err == nil || !strings.Contains(err.Error(), "--from") {
		t.Errorf("no plugin: %v", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Plugin(self, dir); err == nil || !strings.Contains(err.Error(), "and not "+pluginPath) {
		t.Errorf("another program: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, PluginName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the plugin was installed: %v", err)
	}
}
