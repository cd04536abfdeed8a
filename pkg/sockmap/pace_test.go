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
	rig.Root(t)
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
