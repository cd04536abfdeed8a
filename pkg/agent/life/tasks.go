// Package life starts and ends the tasks of an agent, and tells others how it is: that it can serve pods, that the
// node is degraded, and that agents before it were killed.
package life

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Tasks are goroutines that run until the context ends or one of them fails.
type Tasks struct {
	running sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelCauseFunc
}

// NewTasks returns tasks that end with ctx.
func NewTasks(ctx context.Context) *Tasks {
	t := &Tasks{}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	return t
}

// Context returns the context of the tasks, which ends when one of them fails.
func (t *Tasks) Context() context.Context { return t.ctx }

// Start starts a task. If it fails, all others end too.
func (t *Tasks) Start(name string, run func(context.Context) error) {
	t.running.Go(func() {
		if err := run(t.ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.cancel(fmt.Errorf("%s: %w", name, err))
		}
	})
}

// Spawn starts a task that cannot fail.
func (t *Tasks) Spawn(run func(context.Context)) { t.running.Go(func() { run(t.ctx) }) }

// Wait returns when the context has ended: nil if the tasks were asked to end, and otherwise why one failed.
func (t *Tasks) Wait() error {
	<-t.ctx.Done()
	return t.Ended(nil)
}

// Ended returns why the Tasks have ended: nil if they were asked to, and otherwise why one failed. While they
// run it returns err.
func (t *Tasks) Ended(err error) error {
	if t.ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(t.ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// End stops all tasks, and waits until they have ended.
func (t *Tasks) End() {
	t.cancel(nil)
	t.running.Wait()
}
