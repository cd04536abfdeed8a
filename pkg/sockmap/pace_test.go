package sockmap

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/test/rig"
)

// However often the programs wake the agent, programs that had begun earlier have time to see that
// sockets are leaving: two sweeps are never close together.
func TestSweepsAreApart(t *testing.T) {
	rig.MapIterators(t)
	s, err := Open(Config{BPFFS: rig.BPFFS(t), Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	began := time.Now()
	go func() { ended <- s.Run(ctx) }()
	for time.Since(began) < 300*time.Millisecond {
		s.note()
		time.Sleep(100 * time.Microsecond) // or the loop takes the processor that the sweeps need
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	most := uint32(time.Since(began)/sweepFirst) + 1
	if sweeps, err := s.now.control(bpf.SockmapControlCONTROL_LOOK); err != nil || sweeps < 2 || sweeps > most {
		t.Errorf("%d sweeps in %v, %v; want at most %d", sweeps, time.Since(began), err, most)
	}
}

// The pause between sweeps grows while sockets have to wait, and is longer the longer a sweep takes, within its bounds.
func TestPace(t *testing.T) {
	p := newPace()
	defer p.timer.Stop()
	last := time.Duration(0)
	for range 100 {
		p.done(0, false)
		pause := p.due.Sub(p.last)
		if pause < sweepFirst || pause > sweepLast || pause < last || last > 0 && pause > 2*last {
			t.Fatalf("a pause of %v follows one of %v", pause, last)
		}
		last = pause
	}
	if last != sweepLast {
		t.Errorf("the pause is %v after 100 sweeps, want %v", last, sweepLast)
	}
	for took, least := range map[time.Duration]time.Duration{0: sweepFirst, 20 * time.Millisecond: 180 * time.Millisecond, time.Minute: sweepLast} {
		p.done(took, true)
		if !p.due.IsZero() {
			t.Errorf("a sweep is due after %v, though all is done", p.due.Sub(p.last))
		}
		for range 2 {
			if p.soon(); p.due != p.last.Add(least) {
				t.Errorf("after a sweep of %v the next is due in %v, want %v", took, p.due.Sub(p.last), least)
			}
		}
		p.done(took, false)
		if pause := p.due.Sub(p.last); pause != least {
			t.Errorf("after a sweep of %v the pause is %v, want %v", took, pause, least)
		}
	}
}
