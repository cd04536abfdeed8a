package acceleration

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/agent/life"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/optout"
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
		of + "\nfit\n": "", of + "\nfit\nit waits\nit counts\n": "", of + "\nit loses bytes\n": "this kernel has not passed the test: it loses bytes", of: "has not passed the test",
		"another" + of + "\nfit\n": "has not been tested", "": "has not been tested",
	} {
		if err := os.WriteFile(filepath.Join(cfg.StateDir, "sockmap"), []byte(noted), 0o600); err != nil {
			t.Fatal(err)
		}
		got, differences := Unfit(cfg)
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", noted, got, want)
		}
		if listed := strings.Join(differences, ", "); (listed == "it waits, it counts") != strings.Contains(noted, "waits") {
			t.Errorf("%q: differences are %q", noted, listed)
		}
	}
	cfg.Sockmap = "false"
	if found, err := TryKernel(cfg); found != "" || err != nil {
		t.Errorf("found %q, %v", found, err)
	}
	if got, _ := Unfit(cfg); !strings.Contains(got, "has not been tested") {
		t.Errorf("after it was off: %q", got)
	}
}

// earlier returns the options of an agent on a node where an earlier agent has let connections
// bypass TCP, and which has been tested with this result.
func earlier(t *testing.T, result string) *config.Config {
	t.Helper()
	cfg := &config.Config{BPFFS: rig.BPFFS(t), StateDir: t.TempDir(), Sockmap: "true"}
	s, err := sockmap.Open(sockmap.Config{BPFFS: cfg.BPFFS, Limits: limitsOf(cfg), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Switch(true); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	of, err := fitness(limitsOf(cfg))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(File(cfg), []byte(of+"\n"+result+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// accelerating starts the accelerator of an agent, which ends with the test. It returns a function
// that waits until the reason the agent gives, and what is pinned, are as expected.
func accelerating(t *testing.T, cfg *config.Config) (until func(what string, is func(why string, pins sockmap.View) bool)) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	a, err := New(&Config{
		Options: cfg, Store: model.NewStore("node"), Host: 1, Limited: Rated, Report: func(model.Key, string, model.Problem) {}, Log: log,
		Records: func() *optout.CNI { return optout.NewCNI(t.TempDir(), t.TempDir(), 1, nil, log) },
	})
	if err != nil {
		t.Fatal(err)
	}
	a.pause = 50 * time.Millisecond
	running := life.NewTasks(t.Context())
	t.Cleanup(running.End)
	running.Start("sockmap", a.Run)
	return func(what string, is func(why string, pins sockmap.View) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			status, why := a.Status(), ""
			if status != nil {
				why = status.Error
			}
			pins, err := sockmap.Read(cfg.BPFFS)
			if err == nil && is(why, pins) {
				return
			}
			if time.Now().After(end) || running.Context().Err() != nil {
				t.Fatalf("%s: status %+v, pins %+v, %v; the agent: %v", what, status, pins, err, running.Context().Err())
			}
		}
	}
}

// An agent that cannot let connections bypass TCP goes on without, since it serves Services too. It
// says why, returns to TCP what an earlier agent left, and tries again.
func TestAcceleratorTriesAgain(t *testing.T) {
	rig.MapIterators(t)
	cfg := earlier(t, "fit")
	stray := filepath.Join(sockmap.Dir(cfg.BPFFS), "stray") // there are no pins in it
	if err := os.Mkdir(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	until := accelerating(t, cfg)
	until("all to be off, and why", func(why string, pins sockmap.View) bool { return !pins.On && strings.Contains(why, stray) })
	if err := os.Remove(stray); err != nil {
		t.Fatal(err)
	}
	until("all to be on", func(why string, pins sockmap.View) bool { return pins.On && why == "" })
}

// An agent that should not let connections bypass TCP, or must not, returns to TCP what an earlier
// one left.
func TestAcceleratorRetires(t *testing.T) {
	rig.MapIterators(t)
	for name, c := range map[string]struct{ option, result, why string }{
		"off":   {"false", "fit", ""},
		"unfit": {"true", "it loses bytes", "it loses bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := earlier(t, c.result)
			cfg.Sockmap = c.option
			if pins, err := sockmap.Read(cfg.BPFFS); err != nil || !pins.On {
				t.Fatalf("before: %+v, %v", pins, err)
			}
			until := accelerating(t, cfg)
			until("all to be off", func(why string, pins sockmap.View) bool { return !pins.On && strings.Contains(why, c.why) })
			until("no pins", func(_ string, pins sockmap.View) bool { return !pins.Pinned })
		})
	}
}
