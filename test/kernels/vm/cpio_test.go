package vm

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/rig"
)

// Busybox finds in an archive exactly what was written.
func TestArchive(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		rig.Lacking(t, "kernels", "no busybox found to read the archive with")
	}
	source := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(source, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"a/b/c": "1", "a/b/d": "from a file", "e": "", "a/f": "12345678"}
	var archive bytes.Buffer
	if err := writeArchive(&archive, []File{
		{Path: "/a/b/c", Mode: 0o644, Content: []byte("1")},
		{Path: "/a/b/d", Mode: 0o755, Source: source},
		{Path: "e", Mode: 0o644},
		{Path: "/a/f", Mode: 0o600, Content: []byte("12345678")},
	}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command(busybox, "cpio", "-i")
	cmd.Dir, cmd.Stdin = dir, &archive
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := map[string]string{}
	for name := range want {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		got[name] = string(content)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(filepath.Join(dir, "a/b/d")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
}

func TestArchiveWithoutSource(t *testing.T) {
	if err := writeArchive(&bytes.Buffer{}, []File{{Path: "/a", Source: "/no/such/file"}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
