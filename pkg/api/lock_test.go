package api

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestLock checks that at most one agent holds the lock however agents start, end and are cleaned
// up, and that the last cleanup leaves no file behind.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	var holders atomic.Int64
	var agents sync.WaitGroup
	for i := range 8 {
		agents.Go(func() {
			for range 1000 {
				if i%2 == 0 {
					if err := cleanUp(path); err != nil && !errors.Is(err, ErrInUse) {
						t.Errorf("remove: %v", err)
					}
					continue
				}
				lock, err := takeLock(path + lockSuffix)
				if errors.Is(err, ErrInUse) {
					continue
				}
				if err != nil {
					t.Errorf("take: %v", err)
					continue
				}
				if n := holders.Add(1); n > 1 {
					t.Errorf("%d agents have the lock", n)
				}
				// Long enough for another agent to take the lock wrongly.
				time.Sleep(50 * time.Microsecond)
				holders.Add(-1)
				lock.Close()
				time.Sleep(100 * time.Microsecond) // gives the cleanup a turn
			}
		})
	}
	agents.Wait()
	lock, err := takeLock(path + lockSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if err := cleanUp(path); !errors.Is(err, ErrInUse) {
		t.Errorf("cleanup removed the lock of a running agent: %v", err)
	}
	lock.Close()
	if err := cleanUp(path); err != nil {
		t.Errorf("cleanup of what an agent left: %v", err)
	}
	if _, err := os.Stat(path + lockSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock file is still there: %v", err)
	}
}

func cleanUp(path string) error {
	claim, err := NewClaim(path)
	if err != nil {
		return err
	}
	return claim.Remove()
}

// TestClaim checks that a Claim counts as an agent and keeps others from starting, and that an
// agent can start once the Claim is closed.
func TestClaim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	claim, err := NewClaim(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewServer(path, Handlers{}); !errors.Is(err, ErrInUse) {
		t.Errorf("an agent starts despite the claim: %v", err)
	}
	if alive, err := Alive(path); err != nil || !alive {
		t.Errorf("Alive during a claim: %t, %v", alive, err)
	}
	for range 2 {
		if err := claim.Close(); err != nil {
			t.Error(err)
		}
	}
	server, err := NewServer(path, Handlers{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewClaim(path); !errors.Is(err, ErrInUse) {
		t.Errorf("a claim while an agent runs: %v", err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	claim, err = NewClaim(filepath.Join(filepath.Dir(path), "none", "agent.sock"))
	if err != nil || claim.Remove() != nil || claim.Close() != nil {
		t.Errorf("a claim where no agent ever ran: %v", err)
	}
}
