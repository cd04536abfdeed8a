package layout

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// By default, make cluster installs what a user of the chart gets; variables ask for another
// cluster.
func TestClusterOfMake(t *testing.T) {
	for _, tt := range []struct{ given, up, install string }{
		{"", " -cni none ", `-routing "" `},
		{"ROUTING=native", " -cni none ", `-routing "native" `},
		{"CNI=bridge", " -cni bridge ", `-routing "" `},
		{"PROXY=nftables", " -cni bridge -proxy nftables", ""},
		{"PROXY=iptables CNI=none", " -cni none -proxy iptables", ""},
	} {
		cmd := exec.Command("make", append([]string{"--no-print-directory", "-n", "cluster"}, strings.Fields(tt.given)...)...)
		cmd.Dir = "../.."
		cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") }) // set by the make that runs the test
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("make -n cluster %s: %v\n%s", tt.given, err, out)
		}
		if text := string(out); !strings.Contains(text, tt.up) || !strings.Contains(text, tt.install) {
			t.Errorf("make cluster %s does %s", tt.given, text)
		}
	}
}
