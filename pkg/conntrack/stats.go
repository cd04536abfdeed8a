package conntrack

import (
	"time"

	"fairlead.io/fairlead/pkg/maps"
)

// States of rows, for counting.
const (
	StateOpen     = iota
	StateClosing  // this direction has ended
	StateHalfOpen // both directions
	States
)

// Entries are numbers of rows by class and state. A flow has two rows.
type Entries [maps.Classes][States]int

// ClassNames and StateNames name the indexes of Entries.
var (
	ClassNames = [maps.Classes]string{maps.ClassTCP: "tcp", maps.ClassUDP: "udp", maps.ClassSCTP: "sctp"}
	StateNames = [States]string{StateOpen: "open", StateClosing: "closing", StateHalfOpen: "half-open"}
)

// Stats counts what a Collector has done.
type Stats struct {
	Passes   uint64
	Errors   uint64
	Took     time.Duration // by all passes
	LastTook time.Duration
	LastPass time.Time // zero before the first
	Entries  Entries   // found by the last pass
	// Rows and Capacity are indexed by 0 for established and 1 for half-open flows.
	Rows, Capacity [2]int
	// Ports are the SNAT ports in use toward the destination that has most of them, by user.
	Ports [PortUsers]PortUse

	Opened      uint64 // flows ever established, under any agent
	Idle, Stale uint64 // flows deleted

	Most      int    // rows of established flows to which the room may grow; 0 if it cannot
	Growths   uint64 // of the room for established flows
	Failures  uint64 // of attempts to grow it
	GrowError string // why the last growth failed; empty if it succeeded or none was needed
	LastError string // of the last pass; empty if it succeeded
}

// Stats returns the counts.
func (c *Collector) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// account adds a pass to the counts.
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
		s.Entries, s.Rows, s.Ports, s.LastError = t.entries, t.rows, c.walk.ports.fullest(), ""
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
		c.cfg.Log.Warn("cannot delete every flow that is over: trying again", "error", err)
	}
}
