package main

import (
	"strings"
	"testing"

	"fairlead.io/fairlead/test/cluster/running"
)

func TestArguments(t *testing.T) {
	s := &suite{options: options{focus: "a b", procs: 4}, cluster: &running.Cluster{Kubeconfig: "/k"}, dir: "/out"}
	args := s.arguments(part{"serial", "Serial", 1})
	text := strings.Join(args, "\n")
	for _, want := range []string{"--procs=1\n", "--label-filter=Serial\n", "--focus=a b\n", "\n/out/e2e.test\n--\n", "--kubeconfig=/k\n", "--report-prefix=serial"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, args)
		}
	}
	if strings.Contains(text, "--skip=") {
		t.Errorf("an empty pattern must not become --skip, which would leave out every spec: %q", args)
	}
	s.never = "x"
	if args := s.arguments(part{"serial", "Serial", 1}); !strings.Contains(strings.Join(args, "\n"), "--skip=x\n") {
		t.Errorf("no --skip with the pattern: %q", args)
	}
}
