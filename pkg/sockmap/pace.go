package sockmap

import "time"

// The shortest and the longest pause between sweeps while sockets have to leave the map. By the next
// sweep, programs that had begun earlier have seen that their sockets are leaving. Then a sweep has
// to come at a moment when nobody is using them, so the pause grows slowly while none can leave.
const (
	sweepFirst = 2 * time.Millisecond
	sweepLast  = time.Second
	// Sweeps take at most one in so many parts of the time, unless each takes a good part of sweepLast.
	sweepShare = 10
)

// pace is when to sweep next.
type pace struct {
	timer *time.Timer
	last  time.Time // when a sweep ended
	due   time.Time // zero if no sweep is due
	least time.Duration
	pause time.Duration
}

// newPace returns a pace with a sweep due. An earlier agent may just have swept.
func newPace() *pace {
	p := &pace{timer: time.NewTimer(sweepFirst), last: time.Now(), least: sweepFirst}
	p.soon()
	return p
}

// soon has the next sweep follow as soon as it may, however often the programs wake the agent.
func (p *pace) soon() {
	p.pause = p.least
	if at := p.last.Add(p.least); p.due.IsZero() || at.Before(p.due) {
		p.due = at
		p.timer.Reset(time.Until(at))
	}
}

// done notes that a sweep has ended. Unless all is done, there will be another, each time later.
func (p *pace) done(took time.Duration, all bool) {
	p.last, p.due = time.Now(), time.Time{}
	p.least = min(max(sweepFirst, (sweepShare-1)*took), sweepLast)
	if all {
		return
	}
	p.pause = max(p.pause, p.least)
	p.due = p.last.Add(p.pause)
	p.timer.Reset(p.pause)
	p.pause = min(p.pause+p.pause/4, sweepLast)
}
