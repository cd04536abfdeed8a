package podnet

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A folder that cannot be written says so and what to do, and a trial leaves nothing behind.
func TestWritable(t *testing.T) {
	f := folder{t.TempDir()}
	if err := f.writable(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(f.dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	if err := (folder{filepath.Join(f.dir, "gone")}).writable(); err == nil || !strings.Contains(err.Error(), "restart the agent") {
		t.Errorf("of a directory that is gone: %v", err)
	}
	for cause, want := range map[unix.Errno]string{
		unix.ENOSPC: `"df -i /x" show how much`, unix.EDQUOT: "make room there", unix.EROFS: "mount the file system read-write", unix.EIO: "",
	} {
		if cure := cureOf(fmt.Errorf("write: %w", cause), "/x"); !strings.Contains(cure, want) || (cure == "") != (want == "") {
			t.Errorf("%v: %q", cause, cure)
		}
	}
}
