// Package monitor hands what the programs tell of packets to whoever watches. The programs tell nothing while nobody
// does.
package monitor

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/observe"
)

const (
	backlog = 1024                   // events that a client may be behind
	round   = 200 * time.Millisecond // between looks at what was lost, and at who is still there
	renewal = 2 * time.Second        // between requests to the programs, which heed one for some seconds
)

// ErrEnded is returned by Subscribe once the Hub is closed.
var ErrEnded = errors.New("the agent ends")

// Source is what the programs tell, as datapath.Events has it.
type Source interface {
	// Want makes the programs tell what is asked for, for some seconds.
	Want(maps.Watch) error
	// Read waits for an event until late, and returns false if none came.
	Read(event *maps.Event, late time.Time) (bool, error)
	// Lost returns how many events were ever lost.
	Lost() (uint64, error)
	// Close makes the programs tell nothing any more.
	Close() error
}

// Words say what the numbers of an event stand for.
type Words interface {
	Event(*maps.Event) observe.Event
	Close() error
}

// Config is what a Hub needs. Its functions are called when the first client comes.
type Config struct {
	Source func() (Source, error)
	Words  func() (Words, error)
	Log    *slog.Logger
}

// Stats are what a Hub has done since it was made.
type Stats struct {
	Clients int    // now
	Events  uint64 // that were told
	Lost    uint64 // that could not be told to a client
}

// Hub hands events to its clients. It may be used from several goroutines.
type Hub struct {
	cfg Config

	mu      sync.Mutex
	clients map[*Client]struct{}
	source  Source // nil while nobody reads
	ended   bool
	stats   Stats
	reading sync.WaitGroup
}

// NewHub returns a Hub without clients.
func NewHub(cfg Config) *Hub {
	return &Hub{cfg: cfg, clients: map[*Client]struct{}{}}
}

// Client is somebody who watches.
type Client struct {
	hub    *Hub
	filter observe.EventFilter
	watch  maps.Watch
	events chan observe.Event
	lost   uint64 // since it was last told so; guarded by the hub
	end    string // likewise; set before events is closed
}

// Subscribe adds a client, and returns once the programs tell what it wants. The caller closes it.
func (h *Hub) Subscribe(filter observe.EventFilter) (*Client, error) {
	watch, err := filter.Watch()
	if err != nil {
		return nil, err
	}
	c := &Client{hub: h, filter: filter, watch: watch, events: make(chan observe.Event, backlog)}
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

// Events returns what happens. It is closed when nothing more comes; End says why.
func (c *Client) Events() <-chan observe.Event { return c.events }

// End returns why nothing more comes.
func (c *Client) End() string {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	return c.end
}

// Close takes the client away; with the last one the programs are told to tell nothing. Closing twice is no error.
func (c *Client) Close() {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	if _, ok := c.hub.clients[c]; !ok {
		return
	}
	delete(c.hub.clients, c)
	if err := c.hub.renew(); err != nil {
		c.hub.cfg.Log.Warn("programs tell more than is wanted", "error", err)
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

// Close ends what clients get, and takes no more of them.
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

// start begins to read. What it reads by is closed with the last client.
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

// renew asks the programs for what the clients want together. Where they want different addresses or ports the programs
// are asked for all, and each client is given its own.
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

// give hands an event to the clients that want it. Who is behind loses it.
func (h *Hub) give(e *observe.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Events++
	for c := range h.clients {
		if !c.filter.Passes(e) {
			continue
		}
		event := *e
		if e.Verdict == observe.EventBackend && c.filter.Sample > e.Sample {
			if rand.Uint32N(c.filter.Sample) >= e.Sample {
				continue
			}
			event.Sample = c.filter.Sample
		}
		c.send(&event)
	}
}

func (c *Client) send(e *observe.Event) {
	select {
	case c.events <- *e:
	default:
		c.lost++
		c.hub.stats.Lost++
	}
}

// tellLost tells every client what it and the programs have lost.
func (h *Hub) tellLost(n uint64) {
	h.stats.Lost += n
	for c := range h.clients {
		c.lost += n
		if c.lost == 0 {
			continue
		}
		select {
		case c.events <- observe.Event{Lost: c.lost}:
			c.lost = 0
		default: // it is still behind
		}
	}
}
