package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/config"
)

// TestUnfit checks that nothing bypasses TCP unless a record says that this kernel is fit for these
// programs. Any other result on record is reported.
func TestUnfit(t *testing.T) {
	cfg := &config.Config{StateDir: t.TempDir(), Sockmap: "true"}
	of, err := fitness(limitsOf(cfg))
	if err != nil {
		t.Fatal(err)
	}
	for noted, want := range map[string]string{
		of + "\nfit\n": "", of + "\nfit\nit waits\nit counts\n": "", of + "\nit loses bytes\n": "this kernel does not support it: it loses bytes", of: "does not support it",
		"another" + of + "\nfit\n": "has not been tested", "": "has not been tested",
	} {
		if err := os.WriteFile(filepath.Join(cfg.StateDir, "sockmap"), []byte(noted), 0o600); err != nil {
			t.Fatal(err)
		}
		got, differences := unfit(cfg)
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", noted, got, want)
		}
		if told := strings.Join(differences, ", "); (told == "it waits, it counts") != strings.Contains(noted, "waits") {
			t.Errorf("%q: differences are %q", noted, told)
		}
	}
	cfg.Sockmap = "false"
	if found, err := trySockmap(cfg); found != "" || err != nil {
		t.Errorf("found %q, %v", found, err)
	}
	if got, _ := unfit(cfg); !strings.Contains(got, "has not been tested") {
		t.Errorf("after it was off: %q", got)
	}
}
