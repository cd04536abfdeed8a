package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChild(t *testing.T) {
	Root(t)
	NoLeaks(t)
	cgroup, ns := NewCgroup(t), NewNetns(t, "child")
	inside, err := os.Readlink(ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	own := strings.Split(Child(t, nil, nil, "where"), "\n")
	path := "/" + filepath.Base(cgroup.Path())
	tests := []struct {
		name   string
		cgroup *Cgroup
		netns  *Netns
		want   []string
	}{
		{"neither", nil, nil, []string{own[0], current(t)}},
		{"cgroup", cgroup, nil, []string{path, current(t)}},
		{"namespace", nil, ns, []string{own[0], inside}},
		{"both", cgroup, ns, []string{path, inside}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			have := Child(t, tt.cgroup, tt.netns, "where", "a b", "")
			want := strings.Join(append(tt.want, `["a b" ""]`, ""), "\n")
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("(-want +have):\n%s", diff)
			}
		})
	}
	if own[0] == path || current(t) == inside {
		t.Error("the test itself is in the child's cgroup or namespace")
	}
}

func TestChildFails(t *testing.T) {
	NoLeaks(t)
	out, err := RunChild(nil, nil, "fail")
	if err == nil || out != "half\n" {
		t.Fatalf("output %q, error %v", out, err)
	}
	for _, want := range []string{`"fail"`, "exit status 7", "the reason"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if _, err := RunChild(nil, nil, "nosuch"); err == nil || !strings.Contains(err.Error(), `no function in ["nosuch"]`) {
		t.Errorf("a function that does not exist: %v", err)
	}
	var fake fakeT
	Child(&fake, nil, nil, "fail")
	if !strings.Contains(fake.fatal, "exit status 7") || !strings.Contains(fake.fatal, "half") {
		t.Errorf("the test failed with %q, want both the exit status and the output", fake.fatal)
	}
}

// A test binary without Main runs its tests in its children; those must not start children in turn.
func TestChildOfChild(t *testing.T) {
	out := Child(t, nil, nil, "fork")
	if !strings.Contains(out, "did not call Main") {
		t.Errorf("a child started a child: %s", out)
	}
}

func TestChildInNothing(t *testing.T) {
	Root(t)
	NoLeaks(t)
	ns, err := CreateNetns("gone")
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := RunChild(nil, ns, "where"); err == nil || !strings.Contains(err.Error(), "start child where: enter network namespace gone") {
		t.Errorf("child in a closed namespace: %v", err)
	}
}

// Two processes of the rig talk to each other: the server prints its address once it listens, so
// the client need not guess when it is ready.
func TestProcess(t *testing.T) {
	Root(t)
	NoLeaks(t)
	ns := NewNetns(t, "host")
	server := NewChild(t, nil, ns, "serve", "127.0.0.1:0")
	address, err := server.ReadLine()
	if err != nil {
		t.Fatal(err)
	}
	if out := Child(t, nil, ns, "dial", address, "word"); out != "word\n" {
		t.Errorf("answer %q", out)
	}
	if _, err := RunChild(nil, nil, "dial", address, "word"); err == nil {
		t.Error("the server is reachable from outside its namespace")
	}
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", server.Pid())); err != nil || !strings.HasPrefix(string(name), childName) {
		t.Errorf("process %d is %q, %v", server.Pid(), name, err)
	}
	if err := server.Stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err != nil {
		t.Errorf("the server did not end cleanly when its input was closed: %v", err)
	}
	server.Kill() // does nothing to a process that has ended
}
