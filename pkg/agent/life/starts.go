package life

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/preflight"
)

// mostNoted is how many ends of agents are remembered with their times.
const mostNoted = 64

// Starts is the agents' record of themselves, in a file of the state directory: an agent that is
// killed cannot say so, but the next one can.
type Starts struct {
	Boot    string      `json:"boot"`
	Running bool        `json:"running"` // an agent has started, and has not said that it ends
	Killed  int         `json:"killed"`  // agents that ended without saying so
	Noted   []time.Time `json:"noted,omitempty"`
}

// StartsFile returns the file of the record in a state directory.
func StartsFile(dir string) string { return filepath.Join(dir, "starts") }

// noteStart records that an agent starts at a time, and returns what is known of those before it. A
// record of before the node was started, and one that cannot be read, counts as none.
func noteStart(dir, boot string, now time.Time) (Starts, error) {
	var s Starts
	content, err := os.ReadFile(StartsFile(dir))
	if err == nil {
		err = json.Unmarshal(content, &s)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil || s.Boot != boot {
		s = Starts{Boot: boot}
	}
	if s.Running {
		s.Killed++
		s.Noted = append(s.Noted, now)
		s.Noted = s.Noted[max(0, len(s.Noted)-mostNoted):]
	}
	s.Running = true
	return s, errors.Join(err, s.write(dir))
}

// noteEnd records that the agent ends by itself.
func (s Starts) noteEnd(dir string) error {
	s.Running = false
	return s.write(dir)
}

func (s Starts) write(dir string) error {
	content, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the record of starts: %w", err)
	}
	staged := StartsFile(dir) + ".new"
	if err := os.WriteFile(staged, content, 0o600); err != nil {
		_ = os.Remove(staged) // what is left of it
		return fmt.Errorf("record the start: %w", err)
	}
	if err := os.Rename(staged, StartsFile(dir)); err != nil {
		return fmt.Errorf("record the start: %w", err)
	}
	return nil
}

// Begin records the start of this agent, whose state directory nobody else uses. It returns a
// function that records its end. Without a record the agent runs all the same.
func Begin(dir string, log *slog.Logger) (Starts, func()) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		log.Warn("cannot record the start of the agent", "error", err)
		return Starts{}, func() {}
	}
	s, err := noteStart(dir, strings.TrimSpace(string(boot)), time.Now())
	if err != nil {
		log.Warn("cannot record the start of the agent", "error", err)
	}
	if s.Killed > 0 {
		log.Warn("agents ended without having been told to since the node started", "times", s.Killed)
	}
	return s, func() {
		if err := s.noteEnd(dir); err != nil {
			log.Warn("cannot record the end of the agent", "error", err)
		}
	}
}

// Status returns how the agent itself is doing.
func (s Starts) Status(now time.Time) *Status {
	status := &Status{Killed: s.Killed}
	for _, at := range s.Noted {
		status.LastKilled = at
		if now.Sub(at) < KilledPeriod {
			status.KilledLately++
		}
	}
	status.MemoryUsed, status.MemoryLimit, status.MemoryFile = preflight.Root("/").MemoryUse()
	return status
}
