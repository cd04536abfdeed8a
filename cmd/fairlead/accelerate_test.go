package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
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

// An agent that cannot let connections bypass TCP goes on without, since it serves Services too. It
// says why, returns to TCP what an earlier agent left, and tries again.
func TestAcceleratorTriesAgain(t *testing.T) {
	rig.Root(t)
	cfg := &config.Config{BPFFS: rig.BPFFS(t), StateDir: t.TempDir(), Sockmap: "true"}
	log := slog.New(slog.DiscardHandler)
	earlier, err := sockmap.Open(sockmap.Config{BPFFS: cfg.BPFFS, Limits: limitsOf(cfg), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	if err := earlier.Switch(true); err != nil {
		t.Fatal(err)
	}
	if err := earlier.Close(); err != nil {
		t.Fatal(err)
	}
	of, err := fitness(limitsOf(cfg))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(sockmapFile(cfg), []byte(of+"\nfit\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stray := filepath.Join(sockmap.Dir(cfg.BPFFS), "stray") // there are no pins in it
	if err := os.Mkdir(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	a := &accelerator{
		cfg: cfg, store: model.NewStore("node"), host: 1, limited: rated, log: log, pause: 50 * time.Millisecond,
	}
	running := newTasks(t.Context())
	defer running.end()
	if err := a.start(running.start, func(model.Key, string, model.Problem) {}); err != nil {
		t.Fatal(err)
	}
	until := func(what string, is func(status string, on bool) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			status, word := a.status(), ""
			if status != nil {
				word = status.Error
			}
			view, err := sockmap.Read(cfg.BPFFS)
			if err == nil && is(word, view.On) {
				return
			}
			if time.Now().After(end) || running.ctx.Err() != nil {
				t.Fatalf("%s: status %+v, pins %+v, %v; the agent: %v", what, status, view, err, running.ctx.Err())
			}
		}
	}
	until("all to be off, and why", func(why string, on bool) bool { return !on && strings.Contains(why, stray) })
	if err := os.Remove(stray); err != nil {
		t.Fatal(err)
	}
	until("all to be on", func(why string, on bool) bool { return on && why == "" })
}
