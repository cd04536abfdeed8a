package running

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/cluster/plan"
)

func TestParse(t *testing.T) {
	good := "STATE=/s\nKUBECONFIG=/s/kubeconfig\nLOGS=/s/logs\nNETNS=/run/netns/fl-\nNODES=2\nFAMILY=dual\nKUBERNETES=v1.36.3\nCGROUPS=/sys/fs/cgroup/fl-\n"
	have, err := parse(good)
	if err != nil {
		t.Fatal(err)
	}
	want := &Cluster{
		Family: plan.Dual, Nodes: 2, Kubernetes: "v1.36.3", Kubeconfig: "/s/kubeconfig", Logs: "/s/logs",
		netns: "/run/netns/fl-", cgroups: "/sys/fs/cgroup/fl-",
	}
	if diff := cmp.Diff(want, have, cmp.AllowUnexported(Cluster{})); diff != "" {
		t.Errorf("cluster (-want +have):\n%s", diff)
	}
	if at := have.Netns("outside").Netns; at != "/run/netns/fl-outside" || !slices.Equal(have.Names(), []string{"node1", "node2"}) {
		t.Errorf("places: %s, %q", at, have.Names())
	}
	for _, bad := range []string{"", strings.Replace(good, "NODES=2", "NODES=", 1), strings.Replace(good, "FAMILY", "X", 1), strings.Replace(good, "NETNS", "X", 1)} {
		if _, err := parse(bad); err == nil {
			t.Errorf("parse accepts %q", bad)
		}
	}
}
