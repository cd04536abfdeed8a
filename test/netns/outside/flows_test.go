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

// flowsOrder tells a process what to do with many flows at once.
type flowsOrder struct {
	Group string         // name of the flows that this is about
	Dial  netip.AddrPort // open them to here; they send this many bytes at a time and expect them back
	UDP   bool
	From  uint16 // port of the first flow; the others use the ports that follow
	Count int
	// This many flows send without a pause, so that there is always a packet in flight; the others
	// send when told.
	Busy  int
	Bytes int
	Turns int  // each flow sends this many times, counted from now, or fails
	Close bool // end them when no packet is in flight; connections by a reset, so that their ports are free
}

// flowSeen is the last result of a flow. An error ends the flow.
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
		return nil, fmt.Errorf("there are no flows named %q", o.Group)
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
	changed *sync.Cond // a flow's state or task
	flows   []*flow
	ends    bool
}

type flow struct {
	conn       net.Conn
	busy       bool
	asked      uint64 // datagrams sent so far
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

// run sends on a flow until it fails or is told to end. A client that waits for an answer notices
// by itself that its server is gone, as one with keep-alives does.
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

// isDue waits until it is a flow's turn. It returns false if the flow must end.
func (g *group) isDue(f *flow) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.ends && !f.busy && f.turns >= f.due {
		g.changed.Wait()
	}
	return !g.ends
}

// note records the result of a turn.
func (g *group) note(f *flow, got seen, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f.err = err; err == nil {
		f.seen = got
		f.turns++
	}
	g.changed.Broadcast()
}

// askAgain sends datagrams until one is answered: what is in flight through a node that dies is
// lost. Each datagram has a number, and an answer that comes after its time is ignored.
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
			return checkBytes(have[:n], want)
		}
	}
	return seen{}, fmt.Errorf("no answer to any datagram: %w", os.ErrDeadlineExceeded)
}

// ask has every flow get this many more answers, or an error.
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
				return fmt.Errorf("flow %d lacks %d of %d answers after %v", i, f.due-f.turns, turns, 3*patience)
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
