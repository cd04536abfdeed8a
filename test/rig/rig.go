// Package rig builds what tests on a real kernel need: network namespaces and veths between them, a
// cgroup of their own, a private BPF file system, child processes that run a Go function in a
// namespace or cgroup, and a check that nothing is left behind.
//
// Everything comes in two forms: a function that returns an error, for programs such as the demo,
// and a wrapper that takes the test, fails it on errors and cleans up after it. The rig never
// touches the namespaces or the root cgroup of the machine, and what can die with the process does:
// namespaces have no name in the file system.
package rig

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// T is the part of a test that the rig uses. *testing.T and *testing.B implement it; programs that
// use the rig do not have to link package testing.
type T interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// Root skips the test unless the process may create namespaces and load BPF programs. It fails the
// test instead where FAIRLEAD_REQUIRE has the word "root".
func Root(t T) {
	t.Helper()
	if why := lacksRoot(); why != "" {
		Lacking(t, "root", why)
	}
}

// Lacking ends a test because this machine lacks something. The test fails if the environment
// variable FAIRLEAD_REQUIRE, a list of words, contains what: a run that is meant to prove something
// must not pass because it proved nothing. Otherwise the test is skipped, and says why.
func Lacking(t T, what, why string) {
	t.Helper()
	if slices.Contains(strings.Fields(os.Getenv("FAIRLEAD_REQUIRE")), what) {
		t.Fatalf("FAIRLEAD_REQUIRE asks for %s, but %s", what, why)
		return
	}
	t.Skipf("not run: %s", why)
}

// lacksRoot returns what keeps the process from building a rig, or "" if nothing does.
func lacksRoot() string {
	if os.Geteuid() != 0 {
		return "this needs root (sudo make test)"
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Sprintf("the capabilities of the process cannot be read: %v", err)
	}
	for _, c := range []struct {
		name string
		bit  uint
	}{{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN}, {"CAP_NET_ADMIN", unix.CAP_NET_ADMIN}} {
		if sets[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			return "this needs " + c.name + ", which root does not have here"
		}
	}
	return ""
}
