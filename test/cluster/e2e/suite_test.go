package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/cluster/e2e/verdict"
)

func TestParseEnv(t *testing.T) {
	good := "STATE=/s\nKUBECONFIG=/s/kubeconfig\nCONTROL_NETNS=/run/netns/fl-control\nNODES=3\nFAMILY=dual\n"
	found, err := parseEnv(good)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(verdict.Cluster{Family: "dual", Nodes: 3}, found.Cluster); diff != "" {
		t.Errorf("cluster (-want +have):\n%s", diff)
	}
	if found.kubeconfig != "/s/kubeconfig" || found.control.Netns != "/run/netns/fl-control" {
		t.Errorf("places: %+v", found)
	}
	for _, bad := range []string{"", strings.Replace(good, "NODES=3", "NODES=", 1), strings.Replace(good, "FAMILY", "X", 1)} {
		if _, err := parseEnv(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestArguments(t *testing.T) {
	s := &suite{options: options{focus: "a b", procs: 4}, cluster: &cluster{kubeconfig: "/k"}, dir: "/out"}
	args := s.arguments(part{"serial", "Serial", 1})
	text := strings.Join(args, "\n")
	for _, want := range []string{"--procs=1\n", "--label-filter=Serial\n", "--focus=a b\n", "\n/out/e2e.test\n--\n", "--kubeconfig=/k\n", "--report-prefix=serial"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, args)
		}
	}
	if strings.Contains(text, "--skip=") {
		t.Errorf("an empty pattern leaves everything out: %q", args)
	}
	s.never = "x"
	if args := s.arguments(part{"serial", "Serial", 1}); !strings.Contains(strings.Join(args, "\n"), "--skip=x\n") {
		t.Errorf("nothing is left out: %q", args)
	}
}
