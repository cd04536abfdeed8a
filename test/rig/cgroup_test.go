package rig

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCgroupCommand(t *testing.T) {
	Root(t)
	NoLeaks(t)
	cgroup, other := NewCgroup(t), NewCgroup(t)
	if cgroup.Path() == other.Path() {
		t.Fatalf("both are %s", cgroup.Path())
	}
	out, err := cgroup.Command("cat", "/proc/self/cgroup").Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := "0::/" + filepath.Base(cgroup.Path()) + "\n"; !strings.Contains(string(out), want) {
		t.Errorf("the command was in:\n%swant %s", out, want)
	}
}

// Close kills what a test left running, grandchildren included, and nothing outside the cgroup.
func TestCgroupClose(t *testing.T) {
	Root(t)
	NoLeaks(t)
	cgroup, err := CreateCgroup()
	if err != nil {
		t.Fatal(err)
	}
	bystander := NewChild(t, nil, nil, "serve", "127.0.0.1:0")
	forgotten := cgroup.Command("sh", "-c", "sleep 100 & echo $!; exec sleep 100")
	output, err := forgotten.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := forgotten.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := output.Read(make([]byte, 32)); err != nil { // the grandchild is running
		t.Fatal(err)
	}
	if pids, err := cgroup.Pids(); err != nil || len(pids) != 2 || !slices.Contains(pids, forgotten.Process.Pid) {
		t.Errorf("processes %v, %v", pids, err)
	}
	if err := cgroup.Close(); err != nil {
		t.Fatal(err)
	}
	if err := forgotten.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("the command ended with %v", err)
	}
	if _, err := os.Stat(cgroup.Path()); !os.IsNotExist(err) {
		t.Errorf("the directory is still there: %v", err)
	}
	if line, err := bystander.ReadLine(); err != nil {
		t.Errorf("the process outside said %q, %v", line, err)
	}
}
