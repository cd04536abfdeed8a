package monitor

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/maps"
)

// programs is a Source: it delivers the events put into its channel.
type programs struct {
	mu     sync.Mutex
	watch  maps.Watch
	asked  int
	lost   uint64
	fails  error
	closed bool

	events chan maps.Event
	gone   chan struct{} // closed by Close
}

func (p *programs) Want(w maps.Watch) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = w
	p.asked++
	return nil
}

func (p *programs) Read(event *maps.Event, late time.Time) (bool, error) {
	p.mu.Lock()
	err := p.fails
	p.mu.Unlock()
	if err != nil {
		return false, err
	}
	select {
	case *event = <-p.events:
		return true, nil
	case <-time.After(time.Until(late)):
		return false, nil
	}
}

func (p *programs) Lost() (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost, nil
}

func (p *programs) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.New("closed twice")
	}
	p.closed, p.watch = true, maps.Watch{}
	close(p.gone)
	return nil
}

func (p *programs) wanted() maps.Watch {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.watch
}

// words fills in only the fields that a filter looks at.
type words struct{}

func (words) Event(e *maps.Event) Event {
	event := Event{Verdict: "drop", Reason: "ttl", Bytes: e.Len, Source: maps.FlowSource(e.Flow), Sample: e.Sample}
	if e.Reason == 0 {
		event.Verdict, event.Reason = "backend", ""
	}
	return event
}

func (words) Close() error { return nil }

type rig struct {
	*Hub
	opened []*programs
}

func newRig(t *testing.T) *rig {
	r := &rig{}
	r.Hub = NewHub(Config{
		Source: func() (Source, error) {
			p := &programs{events: make(chan maps.Event), gone: make(chan struct{})}
			r.opened = append(r.opened, p)
			return p, nil
		},
		Words: func() (Words, error) { return words{}, nil },
		Log:   slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	t.Cleanup(r.Close)
	return r
}

func (r *rig) subscribe(t *testing.T, f Filter) *Client {
	t.Helper()
	c, err := r.Subscribe(f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func next(t *testing.T, c *Client) Event {
	t.Helper()
	select {
	case e, ok := <-c.Events():
		if !ok {
			t.Fatalf("ended: %s", c.End())
		}
		return e
	case <-time.After(10 * time.Second):
		t.Fatal("no event within 10 s")
	}
	return Event{}
}

func wait(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the source is still open after 10 s")
	}
}

const ttl = 8 // any reason number other than that of a choice

// Each client gets what it asked for. The programs are asked for the union, and for nothing once
// all clients are gone.
func TestClients(t *testing.T) {
	r := newRig(t)
	drops, ports := r.subscribe(t, Filter{}), r.subscribe(t, Filter{Port: 7, Sample: 10})
	p := r.opened[0]
	if w := p.wanted(); w.Port != 0 || w.Reasons&maps.ChoiceBit == 0 || w.Reasons == maps.ChoiceBit || w.Sample != 10 {
		t.Errorf("the programs are asked for %+v", w)
	}
	p.events <- maps.Event{Reason: ttl, Len: 1}
	p.events <- maps.Event{Reason: ttl, Len: 2, Flow: maps.Flow{Sport: maps.PortOf(7)}}
	p.events <- maps.Event{Len: 3, Sample: 10, Flow: maps.Flow{Sport: maps.PortOf(7)}}
	p.events <- maps.Event{Reason: ttl, Len: 4}
	for _, want := range []uint32{1, 2, 4} {
		if e := next(t, drops); e.Bytes != want {
			t.Errorf("drops: %+v, want %d", e, want)
		}
	}
	for _, want := range []uint32{2, 3} {
		if e := next(t, ports); e.Bytes != want {
			t.Errorf("port 7: %+v, want %d", e, want)
		}
	}
	drops.Close()
	drops.Close()
	if w := p.wanted(); w.Port != maps.PortOf(7) {
		t.Errorf("with one client left, the programs are asked for %+v", w)
	}
	ports.Close()
	if w := p.wanted(); w != (maps.Watch{}) {
		t.Errorf("without clients, the programs are asked for %+v", w)
	}
	wait(t, p.gone)
	if s := r.Stats(); s.Clients != 0 || s.Events != 4 || s.Lost != 0 {
		t.Errorf("stats: %+v", s)
	}
	r.subscribe(t, Filter{})
	if len(r.opened) != 2 || r.opened[1].wanted().Reasons == 0 {
		t.Errorf("%d sources were opened, the last is asked for %+v", len(r.opened), r.opened[len(r.opened)-1].wanted())
	}
}

// A client that wants a smaller sample of choices than another gets its share, and each event says
// how many choices it stands for.
func TestShares(t *testing.T) {
	r := newRig(t)
	all, few := r.subscribe(t, Filter{Sample: 1}), r.subscribe(t, Filter{Sample: 4})
	p := r.opened[0]
	if w := p.wanted(); w.Sample != 1 {
		t.Errorf("the programs are asked for one in %d", w.Sample)
	}
	const n = 800
	for range n {
		p.events <- maps.Event{Sample: 1}
	}
	for range n {
		next(t, all)
	}
	got := len(few.Events())
	if e := next(t, few); e.Sample != 4 || got < n/4-100 || got > n/4+100 {
		t.Errorf("got %d of %d choices, each standing for %d", got, n, e.Sample)
	}
}

// A client that does not read blocks nobody, and learns how many events it missed. Every client
// learns how many events the programs could not report.
func TestLost(t *testing.T) {
	r := newRig(t)
	slow, quick := r.subscribe(t, Filter{}), r.subscribe(t, Filter{})
	p := r.opened[0]
	const more = 50
	for i := range uint32(backlog + more) {
		p.events <- maps.Event{Reason: ttl, Len: i}
		if e := next(t, quick); e.Bytes != i {
			t.Fatalf("%+v, want %d", e, i)
		}
	}
	for i := range uint32(backlog) {
		if e := next(t, slow); e.Bytes != i {
			t.Fatalf("%+v, want %d", e, i)
		}
	}
	if e := next(t, slow); e.Lost != more {
		t.Errorf("%+v, want %d lost", e, more)
	}
	p.mu.Lock()
	p.lost = 3
	p.mu.Unlock()
	for _, c := range []*Client{slow, quick} {
		if e := next(t, c); e.Lost != 3 {
			t.Errorf("%+v, want 3 lost", e)
		}
	}
	if s := r.Stats(); s.Lost != more+3 {
		t.Errorf("%+v", s)
	}
}

// When events end, clients are told and learn why. After an error the next client starts afresh.
func TestEnds(t *testing.T) {
	r := newRig(t)
	c := r.subscribe(t, Filter{})
	p := r.opened[0]
	p.mu.Lock()
	p.fails = errors.New("the buffer is gone")
	p.mu.Unlock()
	ended := func(c *Client) string {
		for range c.Events() {
		}
		return c.End()
	}
	if why := ended(c); !strings.Contains(why, "the buffer is gone") {
		t.Errorf("ended: %s", why)
	}
	c.Close()
	wait(t, p.gone)
	c = r.subscribe(t, Filter{})
	r.Close()
	if why := ended(c); why != ErrEnded.Error() || !r.opened[1].closed {
		t.Errorf("ended: %s", why)
	}
	if _, err := r.Subscribe(Filter{}); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
}

// The programs forget requests after a while, so the hub repeats them.
func TestRenewal(t *testing.T) {
	r := newRig(t)
	r.subscribe(t, Filter{})
	p := r.opened[0]
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		p.mu.Lock()
		asked := p.asked
		p.mu.Unlock()
		if asked > 2 { // the first two come from Subscribe and from the first round of reading
			return
		}
		if time.Now().After(end) {
			t.Fatalf("asked %d times", asked)
		}
	}
}
