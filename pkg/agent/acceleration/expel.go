package acceleration

import (
	"errors"
	"time"
)

// settleWithin is how long Expel waits after the agent's start, until it is clear what an earlier agent left.
const settleWithin = 10 * time.Second

// Wake says that Judged may return something else.
func (a *Accelerator) Wake() {
	if running, _ := a.state(); running != nil {
		running.rules.Wake()
	}
}

// Expel makes connections of pods use TCP that policies are about by now. Once it has returned nil, no
// message of theirs begins to bypass it.
func (a *Accelerator) Expel() error {
	select {
	case <-a.settled:
	case <-time.After(settleWithin):
	}
	a.mu.Lock()
	running, retired := a.running, a.retired
	a.mu.Unlock()
	switch {
	case running != nil:
		return running.rules.Expel()
	case retired:
		return nil
	}
	return errors.New("connections that policies are about may still bypass TCP, and cannot be returned to it")
}
