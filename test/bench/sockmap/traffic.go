package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/bench/round"
)

// What is measured in every run. The CPU time is that of both ends, including the kernel's work for
// them; other processes do not disturb it.
const (
	median  = "ns, median"
	worst   = "ns, 99 of 100"
	stream  = "Gbit/s"
	work    = "Gbit/s, by the CPU time of both ends"
	rate    = "conn/s"
	ratable = "conn/s, by the CPU time of both ends"
)

// traffic is what a client and a server do over a connection.
type traffic func(*talk, job) (round.Sample, error)

// job is the amount of traffic.
type job struct{ size, count int }

// requests are messages in both directions.
func requests(t *talk, j job) (round.Sample, error) {
	if err := t.converse(j.size); err != nil {
		return round.Sample{}, err
	}
	b, err := t.proven(func() (both, error) { return t.ask(j.count, j.size) }, t.wentItsWay(j))
	if err != nil {
		return round.Sample{}, err
	}
	sample := b.sample(j)
	sample.Values = map[string]float64{median: b.client.Median, worst: b.client.Worst}
	return sample, nil
}

// streams are messages in one direction from the beginning of the connection. The programs need not
// have noticed it.
func streams(t *talk, j job) (round.Sample, error) {
	return t.stream(j, func(was, is sockmap.Pair) error {
		if is.State != "" && is.State != "watched" || is.Redirected != [2]uint64{} {
			return fmt.Errorf("a stream is %s and bypasses TCP: %+v", is.State, is)
		}
		return nil
	})
}

// turns are streams over connections that had a conversation before.
func turns(t *talk, j job) (round.Sample, error) {
	if err := t.converse(min(j.size, chat)); err != nil {
		return round.Sample{}, err
	}
	return t.stream(j, func(was, is sockmap.Pair) error {
		if is.Redirected[0] == was.Redirected[0] && is.Passed[0] == was.Passed[0] {
			return fmt.Errorf("no message reached the programs: %+v", is)
		}
		return nil
	})
}

// chat is the maximum size of messages before a stream begins.
const chat = 1 << 10

// streamsLater are the same streams some time later, when the sockets have left the map.
func streamsLater(t *talk, j job) (round.Sample, error) {
	size := min(j.size, chat)
	if err := t.converse(size); err != nil {
		return round.Sample{}, err
	}
	// Send more than Limits.Stream, repeatedly, until both sockets have left. Connections that do
	// not take part have the same pauses, in which TCP forgets its congestion window.
	pour := func() error { return second(t.pour(300, size)) }
	for i := range leaving {
		if err := pour(); err != nil {
			return round.Sample{}, err
		}
		if i+1 < leaving {
			time.Sleep(120 * time.Millisecond)
		}
	}
	if t.mode == on {
		if err := t.until("a stream", func(p sockmap.Pair) bool { return p.State == "watched" && p.Inside == 0 }); err != nil {
			return round.Sample{}, err
		}
	}
	if _, err := t.pour(max(j.count/4, 1), j.size); err != nil {
		return round.Sample{}, err
	}
	return t.stream(j, func(was, is sockmap.Pair) error {
		if is.State != "watched" || is.Inside != 0 || is.Redirected != was.Redirected {
			return fmt.Errorf("a stream came back into the map: %+v", is)
		}
		return nil
	})
}

// leaving is how often the agent has to look before the sockets have left.
const leaving = 3

func (t *talk) stream(j job, right func(was, is sockmap.Pair) error) (round.Sample, error) {
	check := t.wentItsWay(j)
	if t.mode == on {
		check = func(was, is state) error { return right(was.pair, is.pair) }
	}
	b, err := t.proven(func() (both, error) { return t.pour(j.count, j.size) }, check)
	if err != nil {
		return round.Sample{}, err
	}
	sample, bits := b.sample(j), float64(b.server.Bytes)*8
	sample.Values = map[string]float64{
		stream: bits / float64(b.client.Took), work: bits / float64(b.client.CPU+b.server.CPU),
	}
	return sample, nil
}

// mingles are streams in both directions at once, over connections that had a conversation before.
func mingles(t *talk, j job) (round.Sample, error) {
	if err := t.converse(min(j.size, chat)); err != nil {
		return round.Sample{}, err
	}
	return t.eitherWay(j, func() (both, error) { return t.mingle(j.count, j.size) })
}

// fetches are requests that are each answered in many messages, over connections that had a
// conversation before.
func fetches(t *talk, j job) (round.Sample, error) {
	if err := t.converse(min(j.size, chat)); err != nil {
		return round.Sample{}, err
	}
	return t.eitherWay(j, func() (both, error) { return t.fetch(j.count, j.size) })
}

// eitherWay measures traffic of which the programs decide which way it goes.
func (t *talk) eitherWay(j job, f func() (both, error)) (round.Sample, error) {
	check := t.wentItsWay(j)
	if t.mode == on {
		check = func(state, state) error { return nil }
	}
	b, err := t.proven(f, check)
	if err != nil {
		return round.Sample{}, err
	}
	sample, bits := b.sample(j), float64(b.client.Bytes+b.server.Bytes)*8
	sample.Values = map[string]float64{
		stream: bits / float64(b.client.Took), work: bits / float64(b.client.CPU+b.server.CPU),
	}
	return sample, nil
}

// sample counts what has arrived by its bytes.
func (b both) sample(j job) round.Sample {
	return round.Sample{Claimed: b.client.Done, Arrived: b.server.Bytes / uint64(j.size), Took: b.client.Took}
}

// state is what is known of a connection.
type state struct {
	pair    sockmap.Pair
	known   bool
	tallies sockmap.Tallies
}

func (t *talk) state() (s state, err error) {
	var failed error
	s.pair, s.known, err = t.pair()
	s.tallies, failed = t.s.Tallies()
	return s, errors.Join(err, failed)
}

// proven measures, and rejects the figures unless the messages took the expected path.
func (t *talk) proven(f func() (both, error), right func(was, is state) error) (b both, err error) {
	was, err := t.state()
	if err != nil {
		return b, err
	}
	if b, err = f(); err != nil {
		return b, err
	}
	is, err := t.state()
	if err == nil {
		err = right(was, is)
	}
	return b, err
}

// enough is the fraction of the messages that must take a path for a figure to count for it.
const enough = 0.99

// wentItsWay checks that the messages of a job took the path of the mode, in one direction if the
// server has not sent any.
func (t *talk) wentItsWay(j job) func(was, is state) error {
	want := uint64(enough * float64(j.count) * float64(j.size))
	return func(was, is state) error {
		switch client, server := is.pair.Redirected[0]-was.pair.Redirected[0], is.pair.Redirected[1]-was.pair.Redirected[1]; {
		case t.mode != on && t.mode != held && is.known:
			return fmt.Errorf("a connection that does not take part is known: %+v", is.pair)
		case t.mode == on && min(client, server) < want:
			return fmt.Errorf("%d bytes of the client and %d of the server went past TCP, want %d: %+v, %+v", client, server, want, is.pair, is.tallies.Passed)
		case t.mode == held && is.tallies.Passed["off"].Bytes-was.tallies.Passed["off"].Bytes < want:
			return fmt.Errorf("not all messages reached the programs, want %d bytes: %+v", want, is.tallies.Passed)
		}
		return nil
	}
}

// visits are connections with one request each.
func (s *twoNodesTwoPods) visits(p *endpoints, m mode, c cpus, j job) (sample round.Sample, err error) {
	if err := s.SetRules(s.rulesOf(m)); err != nil {
		return sample, err
	}
	t := &talk{endpoints: p, s: s, mode: m, cpus: c, way: blocking}
	if m == none {
		if err := s.detach(); err != nil {
			return sample, err
		}
		defer func() { err = errors.Join(err, s.attach()) }()
	}
	b, err := t.do(order{Do: "visit", At: p.at, Count: j.count, Size: j.size}, order{Do: "host", Count: j.count, Size: j.size})
	if err != nil {
		return sample, err
	}
	sample = b.sample(j)
	sample.Values = map[string]float64{
		rate: 1e9 / b.client.Median, ratable: float64(sample.Arrived) * 1e9 / float64(b.client.CPU+b.server.CPU), worst: b.client.Worst,
	}
	return sample, nil
}

// variant returns a variant that sends traffic in a mode, over a new connection each time.
func (s *twoNodesTwoPods) variant(p *endpoints, m mode, c cpus, way string, f traffic, j job) round.Variant {
	return round.Variant{Name: string(m), Run: func(ctx context.Context) (sample round.Sample, err error) {
		defer context.AfterFunc(ctx, p.stop)()
		t, err := s.connect(p, m, c, way)
		if err != nil {
			return sample, err
		}
		if sample, err = f(t, j); err != nil {
			return sample, err
		}
		return sample, t.close()
	}}
}
