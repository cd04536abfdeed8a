package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

// promtool returns the program of Prometheus that checks rules.
func promtool(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"promtool", filepath.Join(cache, "fairlead", "bin", "promtool")} {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	rig.Lacking(t, "promtool", "promtool of Debian's package prometheus must be fetched first: test/tools/promtool.sh")
	return ""
}

// Prometheus takes the alerts, and they fire when what they are about happens, and not before.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	path := promtool(t)
	rules, err := filepath.Abs(filepath.Join(folder, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(path, "check", "rules", rules).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	cases, err := os.ReadFile("testdata/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "alerts.yaml")
	if err := os.WriteFile(file, append([]byte("rule_files: ["+rules+"]\n"), cases...), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(path, "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
