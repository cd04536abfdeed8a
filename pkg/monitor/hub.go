// Package monitor delivers the events that the BPF programs report about packets to the clients
// that watch. While nobody watches, the programs report nothing.
package monitor

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/maps"
)

const (
	backlog = 1024                   // events that a client may lag behind
	round   = 200 * time.Millisecond // between checks for lost events and for remaining clients
	renewal = 2 * time.Second        // between requests to the programs, which honor each for some seconds
)

// ErrEnded is returned by Subscribe once the Hub is closed.
var ErrEnded = errors.New("the agent is shutting down")

// Source delivers the events of the programs; datapath.Events implements it.
type Source interface {
	// Want asks the programs for the events described by the Watch, for some seconds.
	Want(maps.Watch) error
	// Read waits for an event until late, and returns false if none came.
	Read(event *maps.Event, late time.Time) (bool, error)
	// Lost returns how many events were ever lost.
	Lost() (uint64, error)
	// Close makes the programs stop reporting.
	Close() error
}

// Words translates the numbers in an event into names.
type Words interface {
	Event(*maps.Event) Event
	Close() error
}

// Config is what a Hub needs. Its functions are called when the first client arrives.
type Config struct {
	Source func() (Source, error)
	Words  func() (Words, error)
	Log    *slog.Logger
}

// Stats counts what a Hub has done since it was made.
type Stats struct {
	Clients int    // connected now
	Events  uint64 // that were reported
	Lost    uint64 // that could not be delivered to a client
}

// Hub hands events to its clients. It is safe for concurrent use.
type Hub struct {
	cfg Config

	mu      sync.Mutex
	clients map[*Client]struct{}
	source  Source // nil while nobody watches
	ended   bool
	stats   Stats
	reading sync.WaitGroup
}

// NewHub returns a Hub without clients.
func NewHub(cfg Config) *Hub {
	return &Hub{cfg: cfg, clients: map[*Client]struct{}{}}
}

// Client is one subscriber of a Hub.
type Client struct {
	hub    *Hub
	filter Filter
	watch  maps.Watch
	events chan Event
	lost   uint64 // since the client was last told; guarded by the hub's mutex
	end    string // why events ended; guarded likewise, set before events is closed
}

// Subscribe adds a client, and returns once the programs report what it wants. The caller must
// close the client.
func (h *Hub) Subscribe(filter Filter) (*Client, error) {
	watch, err := filter.Watch()
	if err != nil {
		return nil, err
	}
	c := &Client{hub: h, filter: filter, watch: watch, events: make(chan Event, backlog)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return nil, ErrEnded
	}
	h.clients[c] = struct{}{}
	if h.source == nil {
		err = h.start()
	}
	if err == nil {
		err = h.renew()
	}
	if err != nil {
		delete(h.clients, c)
		return nil, err
	}
	return c, nil
}

// Events returns the channel of events. It is closed when no more will come; End says why.
func (c *Client) Events() <-chan Event { return c.events }

// End returns why no more events come.
func (c *Client) End() string {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	return c.end
}

// Close removes the client. Removing the last one makes the programs stop reporting. Closing twice
// is no error.
func (c *Client) Close() {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	if _, ok := c.hub.clients[c]; !ok {
		return
	}
	delete(c.hub.clients, c)
	if err := c.hub.renew(); err != nil {
		c.hub.cfg.Log.Warn("the BPF programs may report more events than the remaining clients want", "error", err)
	}
}

// Stats returns what the Hub has done.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stats
	s.Clients = len(h.clients)
	return s
}

// Close ends every client's events and accepts no new clients.
func (h *Hub) Close() {
	h.mu.Lock()
	h.ended = true
	h.endAll(ErrEnded.Error())
	h.mu.Unlock()
	h.reading.Wait()
}

func (h *Hub) endAll(why string) {
	for c := range h.clients {
		delete(h.clients, c)
		c.end = why
		close(c.events)
	}
}

// start opens the source and starts reading. The reading goroutine closes both after the last
// client left.
func (h *Hub) start() error {
	words, err := h.cfg.Words()
	if err != nil {
		return err
	}
	source, err := h.cfg.Source()
	if err != nil {
		return errors.Join(err, words.Close())
	}
	h.source = source
	r := &reading{hub: h, source: source, words: words}
	if r.lost, err = source.Lost(); err != nil {
		h.source = nil
		return errors.Join(err, words.Close(), source.Close())
	}
	h.reading.Go(r.run)
	return nil
}

// renew asks the programs for the union of what the clients want. If clients want different
// addresses or ports, the programs are asked for all of them, and each client's filter picks its
// own.
func (h *Hub) renew() error {
	if h.source == nil {
		return nil
	}
	var all maps.Watch
	first := true
	for c := range h.clients {
		w := c.watch
		if first {
			all, first = w, false
			continue
		}
		if w.Addr != all.Addr || w.Mask != all.Mask {
			all.Addr, all.Mask = maps.Addr{}, maps.Addr{}
		}
		if w.Port != all.Port {
			all.Port = 0
		}
		all.Reasons |= w.Reasons
		if all.Sample == 0 || w.Sample > 0 && w.Sample < all.Sample {
			all.Sample = w.Sample
		}
	}
	if err := h.source.Want(all); err != nil {
		return fmt.Errorf("ask the programs for events: %w", err)
	}
	return nil
}

// give hands an event to the clients that want it. A client that lags behind loses it.
func (h *Hub) give(e *Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Events++
	for c := range h.clients {
		if !c.filter.Passes(e) {
			continue
		}
		event := *e
		if e.Verdict == EventBackend && c.filter.Sample > e.Sample {
			if rand.Uint32N(c.filter.Sample) >= e.Sample {
				continue
			}
			event.Sample = c.filter.Sample
		}
		c.send(&event)
	}
}

func (c *Client) send(e *Event) {
	select {
	case c.events <- *e:
	default:
		c.lost++
		c.hub.stats.Lost++
	}
}

// sendLost tells every client how many events it has lost, including the n that the programs lost.
func (h *Hub) sendLost(n uint64) {
	h.stats.Lost += n
	for c := range h.clients {
		c.lost += n
		if c.lost == 0 {
			continue
		}
		select {
		case c.events <- Event{Lost: c.lost}:
			c.lost = 0
		default: // it is still behind
		}
	}
}
