// Package rig builds what tests on a real kernel stand on: network namespaces and veths between them, a cgroup of
// their own, a private BPF file system, child processes that run a Go function in one or both, and a check that
// nothing of it is left behind.
//
// Everything comes in two forms: a function that returns an error, which a program such as the demo uses, and a
// wrapper that takes the test, fails it and cleans up after it. Nothing here touches the namespaces or the root
// cgroup of the machine, and what can die with the process does: namespaces have no name in the file system.
package rig

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// T is what the rig needs of a test. *testing.T and *testing.B are one; a program that uses the rig links no package
// testing.
type T interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// Root skips the test, or fails it where "root" is required, unless the process may create namespaces and load
// programs.
func Root(t T) {
	t.Helper()
	if why := lacksRoot(); why != "" {
		Lacking(t, "root", why)
	}
}

// Lacking ends a test for which something is missing here. That is a failure where the environment variable
// FAIRLEAD_REQUIRE, a list of words, has the word what: a run that is meant to prove something must not pass because
// it proved nothing. Elsewhere it is a skip that says why.
func Lacking(t T, what, why string) {
	t.Helper()
	if slices.Contains(strings.Fields(os.Getenv("FAIRLEAD_REQUIRE")), what) {
		t.Fatalf("FAIRLEAD_REQUIRE asks for %s, but %s", what, why)
		return
	}
	t.Skipf("not run: %s", why)
}

// lacksRoot returns what keeps the process from building a rig, or "".
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
