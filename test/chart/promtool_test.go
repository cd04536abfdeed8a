package chart

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

// Prometheus accepts the alerts, and each fires when its cause occurs and not before.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	path := rig.Prometheus(t, "promtool")
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
