package conntrack

import (
	"time"

	"fairlead.io/fairlead/pkg/maps"
)

// The states by which rows are counted.
const (
	StateOpen     = iota
	StateClosing  // its direction has ended
	StateHalfOpen // of both directions
	States
)

// Entries are numbers of rows, by class and state. A flow has two.
type Entries [maps.Classes][States]int

// ClassNames and StateNames are the indexes of Entries for people.
var (
	ClassNames = [maps.Classes]string{maps.ClassTCP: "tcp", maps.ClassUDP: "udp", maps.ClassSCTP: "sctp"}
	StateNames = [States]string{StateOpen: "open", StateClosing: "closing", StateHalfOpen: "half-open"}
)

// Stats are the counts that tell how a Collector is doing.
type Stats struct {
	Passes   uint64
	Errors   uint64
	Took     time.Duration // all passes together
	LastTook time.Duration
	LastPass time.Time // zero before the first
	Entries  Entries   // that the last pass met
	// Rows and Capacity are of the established flows and of the half-open ones.
	Rows, Capacity [2]int

	Opened      uint64 // flows that were established, ever, by any agent
	Idle, Stale uint64 // flows that were forgotten

	Most      int    // rows of established flows to which the room may grow; 0 if it does not
	Growths   uint64 // of that room
	Failures  uint64 // to grow it
	GrowError string // why it could not grow; empty if it did, or has no reason to
	LastError string // of the last pass; empty if it did its job
}

// Stats returns the counts.
func (c *Collector) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// account counts a pass. What is wrong is told when it begins.
func (c *Collector) account(took time.Duration, err error) {
	t := &c.walk.tally
	c.mu.Lock()
	s := &c.stats
	s.Passes++
	s.Took += took
	s.Opened = c.opened
	s.LastTook, s.LastPass = took, time.Now()
	s.Idle += uint64(t.deleted[maps.DoomIdle])
	s.Stale += uint64(t.deleted[maps.DoomStale])
	s.Capacity = [2]int{c.cfg.Flows.Capacity(false), c.cfg.Flows.Capacity(true)}
	if err == nil {
		s.Entries, s.Rows, s.LastError = t.entries, t.rows, ""
	}
	c.mu.Unlock()
	if err != nil {
		c.fail(err)
	}
}

func (c *Collector) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Errors++
	if text := err.Error(); text != c.stats.LastError {
		c.stats.LastError = text
		c.cfg.Log.Warn("flows that are over may be remembered for longer", "error", err)
	}
}
