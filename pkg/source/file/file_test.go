package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAnEmptiedFileKeepsItsObjects(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.scan()
	r.write("a.yaml", "")
	r.scan()
	r.want("a=10.0.0.1", "a.yaml:0")
	r.write("a.yaml", service("a", "10.0.0.2"))
	r.scan()
	r.want("a=10.0.0.2", "")
}

func TestRefusedFiles(t *testing.T) {
	tests := []struct {
		name string
		make func(path string) error
		says string
	}{
		{"directory", func(path string) error { return os.Mkdir(path, 0o755) }, "it is a directory"},
		{"pipe", func(path string) error { return syscall.Mkfifo(path, 0o644) }, "not a regular file (p---"},
		{"device", func(path string) error { return os.Symlink("/dev/zero", path) }, "not a regular file (D"},
		{"dangling link", func(path string) error { return os.Symlink("nowhere", path) }, "no such file"},
		{"link to itself", func(path string) error { return os.Symlink("bad.yaml", path) }, "too many levels"},
		{"huge file", func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, maxSize+1))
		}, "more than the limit of 268435456"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, t.TempDir())
			r.write("a.yaml", service("a", "10.0.0.1"))
			r.must(test.make(r.path("bad.yaml")))
			r.scan()
			r.want("a=10.0.0.1", "bad.yaml:0")
			if got := r.source.Status().Errors[0].Error(); !strings.Contains(got, test.says) {
				t.Errorf("got error %q, want it to say %q", got, test.says)
			}
			if r.synced() {
				t.Error("synced although a file was not read")
			}
			r.must(os.Remove(r.path("bad.yaml")))
			r.scan()
			r.want("a=10.0.0.1", "")
		})
	}
}

func TestAMissingPathKeepsEverything(t *testing.T) {
	r := newRig(t, filepath.Join(t.TempDir(), "manifests"))
	r.scan()
	r.want("", "manifests:0")
	if r.synced() {
		t.Error("synced without a directory")
	}
	r.must(os.Mkdir(r.dir, 0o755))
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.scan()
	r.want("a=10.0.0.1", "")
	r.must(os.Rename(r.dir, r.dir+".old"))
	r.scan()
	r.want("a=10.0.0.1", "manifests:0")
	r.must(os.Mkdir(r.dir, 0o755))
	r.write("b.yaml", service("b", "10.0.0.2"))
	r.scan()
	r.want("b=10.0.0.2", "")
}

// TestYoungFilesHoldUpDelivery checks that a change of several files is seen as one.
func TestYoungFilesHoldUpDelivery(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.write("b.yaml", service("b", "10.0.0.2"))
	r.scan()
	r.source.minAge = time.Hour
	old := time.Now().Add(-2 * time.Hour)
	r.write("a.yaml", service("a", "10.0.0.3"))
	r.must(os.Chtimes(r.path("a.yaml"), old, old))
	r.write("b.yaml", service("b", "10.0.0.4"))
	if wait := r.source.scan(true); wait <= 0 {
		t.Error("the scan does not wait for the young file")
	}
	r.want("a=10.0.0.1 b=10.0.0.2", "")
	r.must(os.Chtimes(r.path("b.yaml"), old, old))
	r.scan()
	r.want("a=10.0.0.3 b=10.0.0.4", "")
}

// TestARestlessFileDoesNotHoldUpTheOthersForEver lets time pass by moving the start of the wait.
func TestARestlessFileDoesNotHoldUpTheOthersForEver(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.source.minAge = time.Hour
	old := time.Now().Add(-2 * time.Hour)
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.must(os.Chtimes(r.path("a.yaml"), old, old))
	r.write("restless.yaml", service("b", "10.0.0.2"))
	if r.source.scan(true) == 0 {
		t.Fatal("the scan does not wait for the young file")
	}
	r.want("", "")
	r.source.youngSince = time.Now().Add(-minAgeMax)
	if r.source.scan(true) == 0 {
		t.Error("the scan forgets the young file")
	}
	r.want("a=10.0.0.1", "")
	r.source.publish(true)
	r.want("a=10.0.0.1", "restless.yaml:0")
	if r.synced() {
		t.Error("synced although a file was not read")
	}
	r.must(os.Chtimes(r.path("restless.yaml"), old, old))
	r.scan()
	r.want("a=10.0.0.1 b=10.0.0.2", "")
	if !r.synced() {
		t.Error("not synced although all files are valid")
	}
}

// TestAFileThatIsAwayForAMoment does what some editors do: they move the old file away before they
// write the new one.
func TestAFileThatIsAwayForAMoment(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.scan()
	r.source.minAge = time.Hour
	r.must(os.Rename(r.path("a.yaml"), r.path("a.yaml~")))
	if wait := r.source.scan(true); wait <= 0 {
		t.Error("the scan does not wait for the file to come back")
	}
	r.want("a=10.0.0.1", "")
	r.source.files["a.yaml"].missing = time.Now().Add(-2 * time.Hour)
	r.scan()
	r.want("", "")
}

// TestUnchangedFilesAreNotReadAgain puts other contents behind an unchanged stamp.
func TestUnchangedFilesAreNotReadAgain(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.scan()
	f := r.source.files["a.yaml"]
	before := &f.parsed[0]
	r.write("a.yaml", service("a", "10.0.0.2"))
	info, err := os.Stat(r.path("a.yaml"))
	r.must(err)
	f.stamp = stampOf(info)
	r.source.scan(false)
	r.want("a=10.0.0.1", "")
	r.scan() // a full scan ignores stamps
	r.want("a=10.0.0.2", "")
	if &f.parsed[0] == before {
		t.Error("the objects are still the old ones")
	}
	before = &f.parsed[0]
	r.scan()
	if &f.parsed[0] != before {
		t.Error("unchanged contents were parsed again")
	}
}
