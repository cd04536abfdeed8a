package conntrack

import (
	"math/bits"
	"time"
)

const (
	// roomy is the part of the room for established flows beyond which there has to be more. A
	// growth takes about a second, and new flows arrive meanwhile.
	roomy = 0.5
	// glances is how often a Collector checks whether so many flows began since the last pass that
	// another one is needed.
	glances = time.Second
)

// fills reports whether the room for established flows may run out soon, judged by what the
// programs counted since the last pass: scanning all rows every second would cost too much.
func (c *Collector) fills() bool {
	if c.cfg.Grow == nil || c.wanted > 0 || c.Stats().LastPass.IsZero() {
		return false
	}
	capacity := c.cfg.Flows.Capacity(false)
	opened, err := c.cfg.Flows.Opened()
	if err != nil || capacity >= c.cfg.Most {
		return false
	}
	return float64(c.walk.tally.rows[0])+2*float64(opened-c.opened) > roomy*float64(capacity)
}

// grow makes more room for established flows if the last pass found too little, or if an earlier
// growth failed.
func (c *Collector) grow(seen bool) {
	if c.cfg.Grow == nil {
		return
	}
	if c.wanted == 0 && seen {
		c.wanted = c.want()
	}
	if c.wanted == 0 {
		return
	}
	start := time.Now()
	flows, err := c.cfg.Grow(c.wanted)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if text := err.Error(); text != c.stats.GrowError {
			c.stats.GrowError = text
			c.cfg.Log.Error("cannot make more room for flows: trying again", "rows", c.wanted, "error", err)
		}
		c.stats.Failures++
		return
	}
	c.cfg.Flows, c.wanted = flows, 0
	c.stats.Growths++
	c.stats.GrowError = ""
	c.stats.Capacity[0] = flows.Capacity(false)
	c.cfg.Log.Info("made more room for flows", "rows", c.stats.Rows[0], "room", c.stats.Capacity[0], "took", time.Since(start))
}

// want returns how many rows there should be room for, or 0 if there is enough.
func (c *Collector) want() int {
	rows, capacity := c.walk.tally.rows[0], c.cfg.Flows.Capacity(false)
	if float64(rows) <= roomy*float64(capacity) || capacity >= c.cfg.Most {
		return 0
	}
	return min(1<<bits.Len(uint(float64(rows)/roomy)), c.cfg.Most)
}
