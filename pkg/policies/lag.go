package policies

import "time"

// lag is how long changes wait until they are in force. Times are those at which changes were seen.
type lag struct {
	waiting time.Time // the oldest change that nobody compiles yet; zero: none
	taken   time.Time // the oldest of those that are being compiled and written, or have failed to be
	failed  bool      // what was taken did not get into force at the last attempt
}

// see notes a change.
func (l *lag) see(now time.Time) {
	if l.waiting.IsZero() {
		l.waiting = now
	}
}

// take says that all changes so far are being compiled.
func (l *lag) take() { l.taken, l.waiting = l.oldest(), time.Time{} }

// end says whether what was taken is in force, and returns how long the oldest of it waited if it changed
// anything.
func (l *lag) end(now time.Time, changed bool, err error) (waited time.Duration, counts bool) {
	if err != nil {
		l.failed = true
		return 0, false
	}
	waited, counts = now.Sub(l.taken), !l.taken.IsZero() && (changed || l.failed)
	l.taken, l.failed = time.Time{}, false
	return waited, counts
}

// oldest returns since when the oldest change waits, or zero if none does.
func (l *lag) oldest() time.Time {
	if !l.taken.IsZero() {
		return l.taken
	}
	return l.waiting
}
