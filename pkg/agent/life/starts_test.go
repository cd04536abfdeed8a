package life

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An agent that was killed is counted by the next one, until the node starts again; one that ended
// by itself is not.
func TestStarts(t *testing.T) {
	dir, now := t.TempDir(), time.Unix(1000, 0)
	start := func(boot string, killed, lately int) Starts {
		t.Helper()
		s, err := noteStart(dir, boot, now)
		if err != nil {
			t.Fatal(err)
		}
		if have := s.Status(now); have.Killed != killed || have.KilledLately != lately {
			t.Errorf("%d were killed, %d lately, want %d and %d", have.Killed, have.KilledLately, killed, lately)
		}
		return s
	}
	start("one", 0, 0)
	s := start("one", 1, 1)
	if err := s.noteEnd(dir); err != nil {
		t.Fatal(err)
	}
	start("one", 1, 1)
	now = now.Add(KilledPeriod)
	start("one", 2, 1)
	for n := range 2 * mostNoted {
		s = start("one", 3+n, min(mostNoted, 2+n))
	}
	if len(s.Noted) != mostNoted {
		t.Errorf("%d times are noted", len(s.Noted))
	}
	start("two", 0, 0)
	if err := os.WriteFile(StartsFile(dir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := noteStart(dir, "two", now); err == nil {
		t.Error("a damaged record is read")
	}
	start("two", 1, 1)
	if _, err := noteStart(filepath.Join(dir, "gone"), "two", now); err == nil {
		t.Error("a record without a directory is written")
	}
}
