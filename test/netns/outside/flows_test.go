package outside

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// flowsOrder is one thing that a process is told to do with many flows at once.
type flowsOrder struct {
	Group string         // of the flows that this is about
	Dial  netip.AddrPort // open them, to ask there with so many bytes at a time and expect them back
	UDP   bool
	From  uint16 // the port of the first; the next ones have those that follow
	Count int
	Busy  int // so many of them ask without end, so that there is always something on its way; the others when they are told
	Bytes int
	Turns int  // each asks so often, counted from now, or fails
	Close bool // end them when nothing is on its way; connections with a reset, so that their ports are free
}

// flowSeen is the last that came of a flow. An error is its end.
type flowSeen struct {
	Server, Client netip.AddrPort
	Err            string
}

type flows struct{ groups map[string]*group }

func newFlowsMain([]string) (func(flowsOrder) ([]flowSeen, error), error) {
	return (&flows{map[string]*group{}}).do, nil
}

func (f *flows) do(o flowsOrder) ([]flowSeen, error) {
	if o.Dial.IsValid() {
		f.groups[o.Group] = open(o)
	}
	g := f.groups[o.Group]
	if g == nil {
		return nil, fmt.Errorf("no flows are called %q", o.Group)
	}
	if err := g.ask(o.Turns); err != nil {
		return nil, err
	}
	if o.Close {
		delete(f.groups, o.Group)
		return nil, g.close()
	}
	return g.list(), nil
}

// group is flows of one kind.
type group struct {
	running sync.WaitGroup
	mu      sync.Mutex
	changed *sync.Cond // what a flow has, or has to do
	flows   []*flow
	ends    bool
}

type flow struct {
	conn       net.Conn
	busy       bool
	asked      uint64 // datagrams, ever
	turns, due int
	seen       seen
	err        error
}

func open(o flowsOrder) *group {
	g := &group{}
	g.changed = sync.NewCond(&g.mu)
	for i := range o.Count {
		f := &flow{busy: i < o.Busy}
		g.flows = append(g.flows, f)
		g.running.Go(func() { g.run(f, order{Dial: o.Dial, UDP: o.UDP, From: o.From + uint16(i), Bytes: o.Bytes}) })
	}
	return g
}

// run has a flow ask until it fails or is to end. A client that waits for an answer finds out by itself whether there is
// anybody, as one does that has keep-alives.
func (g *group) run(f *flow, o order) {
	network, ask, dialer := "tcp", o.exchange, o.dialer()
	if o.UDP {
		network, ask = "udp", func(net.Conn) (seen, error) { return f.askAgain(o) }
	}
	dialer.KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 60}
	conn, err := dialer.Dial(network, o.Dial.String())
	f.conn = conn
	for got := (seen{}); err == nil && g.isDue(f); g.note(f, got, err) {
		got, err = ask(conn)
	}
	if err != nil {
		g.note(f, seen{}, err)
	}
}

// isDue waits until it is a flow's turn. False: it is to end.
func (g *group) isDue(f *flow) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.ends && !f.busy && f.turns >= f.due {
		g.changed.Wait()
	}
	return !g.ends
}

// note keeps what a turn came to.
func (g *group) note(f *flow, got seen, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f.err = err; err == nil {
		f.seen = got
		f.turns++
	}
	g.changed.Broadcast()
}

// askAgain sends datagrams until one is answered: what is on its way through a node that dies is lost. Each has a number, and an
// answer that comes after its time is nobody's.
func (f *flow) askAgain(o order) (seen, error) {
	have := make([]byte, 1<<16)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		f.asked++
		want := append(binary.BigEndian.AppendUint64(nil, f.asked), text(o.Bytes)...)
		if _, err := f.conn.Write(want); err != nil {
			return seen{}, err
		}
		for {
			n, err := o.answer(f.conn, have)
			if err != nil {
				return seen{}, err
			}
			if n == 0 {
				break
			}
			if n >= header+8 && binary.BigEndian.Uint64(have[header:]) < f.asked {
				continue
			}
			return judge(have[:n], want)
		}
	}
	return seen{}, fmt.Errorf("no answer to any datagram: %w", os.ErrDeadlineExceeded)
}

// ask has every flow have so many more answers, or an error.
func (g *group) ask(turns int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range g.flows {
		f.due = f.turns + turns
	}
	g.changed.Broadcast()
	late := false
	defer time.AfterFunc(3*patience, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		late = true
		g.changed.Broadcast()
	}).Stop()
	for i, f := range g.flows {
		for f.err == nil && f.turns < f.due {
			if late {
				return fmt.Errorf("flow %d lacks %d answers of %d after %v", i, f.due-f.turns, turns, 3*patience)
			}
			g.changed.Wait()
		}
	}
	return nil
}

func (g *group) list() (list []flowSeen) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range g.flows {
		s := flowSeen{Server: f.seen.Server, Client: f.seen.Client}
		if f.err != nil {
			s.Err = f.err.Error()
		}
		list = append(list, s)
	}
	return list
}

func (g *group) close() error {
	g.mu.Lock()
	g.ends = true
	g.changed.Broadcast()
	g.mu.Unlock()
	g.running.Wait()
	var errs []error
	for _, f := range g.flows {
		if f.conn == nil { // it could not be opened
			continue
		}
		if conn, ok := f.conn.(*net.TCPConn); ok {
			errs = append(errs, conn.SetLinger(0))
		}
		errs = append(errs, f.conn.Close())
	}
	return errors.Join(errs...)
}
