package sockmap

import "time"

// The shortest and the longest pause between sweeps while sockets have to leave the map. The pause
// grows while none can leave. By the next sweep, programs that had begun earlier have seen that
// their sockets are leaving.
const (
	sweepFirst = 10 * time.Millisecond
	sweepLast  = time.Second
)

// pace is when to sweep next. Two sweeps are never closer than sweepFirst, however often the
// programs wake the agent.
type pace struct {
	timer *time.Timer
	last  time.Time // when a sweep ended
	due   time.Time // zero if no sweep is due
	pause time.Duration
}

// newPace returns a pace with a sweep due. An earlier agent may just have swept.
func newPace() *pace {
	now := time.Now()
	return &pace{timer: time.NewTimer(sweepFirst), last: now, due: now.Add(sweepFirst), pause: sweepFirst}
}

// soon has the next sweep follow as soon as it may.
func (p *pace) soon() {
	p.pause = sweepFirst
	if at := p.last.Add(sweepFirst); p.due.IsZero() || at.Before(p.due) {
		p.due = at
		p.timer.Reset(time.Until(at))
	}
}

// done notes that a sweep has ended. Unless all is done, there will be another, each time later.
func (p *pace) done(all bool) {
	p.last, p.due = time.Now(), time.Time{}
	if all {
		return
	}
	p.due = p.last.Add(p.pause)
	p.timer.Reset(p.pause)
	p.pause = min(2*p.pause, sweepLast)
}
