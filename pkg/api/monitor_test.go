package api

import (
	"context"
	"errors"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/monitor"
)

// script is a Stream of prepared events.
type script struct {
	events chan monitor.Event
	closed chan struct{}
}

func (s *script) Events() <-chan monitor.Event { return s.events }
func (s *script) End() string                  { return "the agent ends" }
func (s *script) Close()                       { close(s.closed) }

func TestMonitor(t *testing.T) {
	s := &script{make(chan monitor.Event, 2), make(chan struct{})}
	var asked monitor.Filter
	h := handlers()
	h.Monitor = func(f monitor.Filter) (Stream, error) {
		if f.Port == 1 {
			return nil, errors.New("no maps yet")
		}
		asked = f
		return s, nil
	}
	path := socket(t)
	stop := serve(t, path, h)
	client := NewClient(path)
	watch := func(ctx context.Context, f monitor.Filter, visit func(*monitor.Event) error) error {
		return client.Monitor(ctx, &f, func() error { return nil }, visit)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.events <- monitor.Event{Reason: "ttl"}
	err := watch(ctx, monitor.Filter{Reasons: []string{"ttl", "no-port"}, Sample: 5}, func(e *monitor.Event) error {
		if *e != (monitor.Event{Reason: "ttl"}) {
			t.Errorf("%+v", e)
		}
		cancel()
		return nil
	})
	if err != nil || len(asked.Reasons) != 2 || asked.Sample != 5 {
		t.Errorf("%v, asked for %+v", err, asked)
	}
	<-s.closed // closed once the client is gone

	if err := watch(t.Context(), monitor.Filter{Port: 1}, nil); err == nil || !strings.Contains(err.Error(), "no maps yet") {
		t.Errorf("a monitor that cannot start: %v", err)
	}
	if err := watch(t.Context(), monitor.Filter{Reasons: []string{"bad-luck"}}, nil); err == nil || !strings.Contains(err.Error(), `unknown reason "bad-luck"`) {
		t.Errorf("an unknown reason: %v", err)
	}
	s.closed = make(chan struct{})
	close(s.events)
	err = watch(t.Context(), monitor.Filter{}, nil)
	if !isUnreachable(err) || !errors.Is(err, ErrEnded) || !strings.Contains(err.Error(), "the agent ends") {
		t.Errorf("the agent ends: %v", err)
	}
	stop()
	if err := watch(t.Context(), monitor.Filter{}, nil); !isUnreachable(err) {
		t.Errorf("no agent: %v", err)
	}
}
