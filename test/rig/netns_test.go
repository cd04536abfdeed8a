package rig

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// current returns the network namespace of the calling thread.
func current(t *testing.T) string {
	t.Helper()
	ns, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

func TestNetnsDo(t *testing.T) {
	Root(t)
	NoLeaks(t)
	outside := current(t)
	a, b := NewNetns(t, "a"), NewNetns(t, "b")
	seen := map[string]string{outside: "the process"}
	for _, n := range []*Netns{a, b} {
		var inside string
		if err := n.Do(func() error { inside = current(t); return nil }); err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[inside]; ok {
			t.Errorf("%s is in the namespace of %s", n, other)
		}
		seen[inside] = n.String()
		if named, err := os.Readlink(n.Path()); err != nil || named != inside {
			t.Errorf("the path of %s leads to %q, %v; want %s", n, named, err, inside)
		}
	}
	reason := errors.New("the reason")
	if err := a.Do(func() error { return reason }); !errors.Is(err, reason) {
		t.Errorf("the error of the function became %v", err)
	}
	if now := current(t); now != outside {
		t.Errorf("the test is in %s now, and was in %s", now, outside)
	}
}

// A thread that returns from a namespace goes on to run other goroutines, so each must be back
// home.
func TestNetnsThreads(t *testing.T) {
	Root(t)
	NoLeaks(t)
	outside := current(t)
	spaces := []*Netns{NewNetns(t, "a"), NewNetns(t, "b"), NewNetns(t, "c")}
	var wg sync.WaitGroup
	for i := range 60 {
		n := spaces[i%len(spaces)]
		wg.Go(func() {
			for range 20 {
				var inside string
				if err := n.Do(func() error { runtime.Gosched(); inside = current(t); return nil }); err != nil {
					t.Error(err)
				}
				if want, err := os.Readlink(n.Path()); err != nil || inside != want {
					t.Errorf("in %s, want %s (%v)", inside, want, err)
				}
				if now := current(t); now != outside {
					t.Errorf("outside is %s now", now)
				}
			}
		})
	}
	wg.Wait()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		ns, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net")
		if err == nil && ns != outside {
			t.Errorf("thread %s stayed in %s", task.Name(), ns)
		}
	}
}

func TestNetnsClosed(t *testing.T) {
	Root(t)
	NoLeaks(t)
	n, err := CreateNetns("closed")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	ran := false
	err = n.Do(func() error { ran = true; return nil })
	if !errors.Is(err, unix.EBADF) || !strings.Contains(err.Error(), "closed") || ran {
		t.Errorf("Do after Close: %v, ran: %t", err, ran)
	}
}

// t.Fatal in a namespace must end the test, not only the goroutine that happens to run the function.
func TestDoEndsTheTest(t *testing.T) {
	Root(t)
	NoLeaks(t)
	n := NewNetns(t, "fatal")
	after := false
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = n.Do(func() error { runtime.Goexit(); return nil })
		after = true
	})
	wg.Wait()
	if after {
		t.Error("the calling goroutine went on")
	}
}

// A thread that cannot return must not run anything else.
func TestThreadIsDiscarded(t *testing.T) {
	Root(t)
	home, reason := current(t), errors.New("no way back")
	stuck := 0
	enter := func() error { stuck = unix.Gettid(); return unix.Unshare(unix.CLONE_NEWNET) }
	err := onThread(enter, func(*os.File) error { return reason }, func() error { return nil })
	if !errors.Is(err, reason) {
		t.Errorf("error %v", err)
	}
	if stuck == os.Getpid() {
		return // the main thread cannot end; the runtime parks it for good
	}
	task := "/proc/self/task/" + strconv.Itoa(stuck)
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		if _, err := os.Stat(task); os.IsNotExist(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("thread %d is still there", stuck)
		}
	}
	if now := current(t); now != home {
		t.Errorf("the test is in %s", now)
	}
}
