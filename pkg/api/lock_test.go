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

// However agents start and end while somebody cleans up, no two of them have the lock, and whoever cleans up last leaves nothing.
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
					t.Errorf("%d have the lock", n)
				}
				time.Sleep(50 * time.Microsecond) // long enough for another to take what it should not
				holders.Add(-1)
				lock.Close()
				time.Sleep(100 * time.Microsecond) // who cleans up is to have a turn
			}
		})
	}
	agents.Wait()
	lock, err := takeLock(path + lockSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if err := cleanUp(path); !errors.Is(err, ErrInUse) {
		t.Errorf("the lock of who runs is removed: %v", err)
	}
	lock.Close()
	if err := cleanUp(path); err != nil {
		t.Errorf("what was left is not removed: %v", err)
	}
	if _, err := os.Stat(path + lockSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
}

func cleanUp(path string) error {
	claim, err := NewClaim(path)
	if err != nil {
		return err
	}
	return claim.Remove()
}

// Who has claimed the place of an agent is taken for one, and none starts. After a claim that removes nothing one does.
func TestClaim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	claim, err := NewClaim(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewServer(path, Handlers{}); !errors.Is(err, ErrInUse) {
		t.Errorf("an agent starts in spite of a claim: %v", err)
	}
	if alive, err := Alive(path); err != nil || !alive {
		t.Errorf("a claim is told as alive: %t, %v", alive, err)
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
		t.Errorf("an agent's place is claimed: %v", err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	claim, err = NewClaim(filepath.Join(filepath.Dir(path), "none", "agent.sock"))
	if err != nil || claim.Remove() != nil || claim.Close() != nil {
		t.Errorf("a claim of what has never been: %v", err)
	}
}
