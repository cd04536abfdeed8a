package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// tasks are the goroutines of an agent, which run until the context ends or one of them fails.
type tasks struct {
	sync.WaitGroup
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func newTasks(ctx context.Context) *tasks {
	t := &tasks{}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	return t
}

func (t *tasks) start(name string, run func(context.Context) error) {
	t.Go(func() {
		if err := run(t.ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.cancel(fmt.Errorf("%s: %w", name, err))
		}
	})
}

// end stops all tasks, and waits until they have ended.
func (t *tasks) end() {
	t.cancel(nil)
	t.Wait()
}
