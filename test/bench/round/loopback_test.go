package round_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
	"fairlead.io/fairlead/test/rig"
)

// listen passes every incoming connection to a function.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go rig.Serve(listener, serve)
	return listener.Addr().String()
}

// asks returns a variant that sends one-byte requests to an address and awaits each answer. The far
// end counts.
func asks(name, address string, requests uint64, counter *atomic.Uint64) round.Variant {
	return round.Variant{Name: name, Run: func(ctx context.Context) (round.Sample, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return round.Sample{}, err
		}
		defer c.Close()
		defer context.AfterFunc(ctx, func() { _ = c.Close() })()
		before, message := counter.Load(), []byte{0}
		for range requests {
			if _, err := c.Write(message); err != nil {
				return round.Sample{}, err
			}
			if _, err := io.ReadFull(c, message); err != nil {
				return round.Sample{}, err
			}
		}
		return round.Sample{Claimed: requests, Arrived: counter.Load() - before}, nil
	}}
}

// answers returns a server that counts the requests that it answers.
func answers(counter *atomic.Uint64) func(net.Conn) {
	return func(c net.Conn) {
		defer c.Close()
		for message := []byte{0}; ; {
			if _, err := io.ReadFull(c, message); err != nil {
				return
			}
			counter.Add(1)
			if _, err := c.Write(message); err != nil {
				return
			}
		}
	}
}

// relays returns a server that relays to another one.
func relays(server string) func(net.Conn) {
	return func(near net.Conn) {
		defer near.Close()
		far, err := net.Dial("tcp", server)
		if err != nil {
			return
		}
		defer far.Close()
		go func() { _, _ = io.Copy(near, far) }()
		_, _ = io.Copy(far, near)
	}
}

// mirrors echoes requests and counts nothing.
func mirrors(c net.Conn) {
	defer c.Close()
	_, _ = io.Copy(c, c)
}

// A whole benchmark on the real machine: requests to a server, with and without a relay, and to an
// impostor that the server does not count. This is also the example of the README.
func TestLoopback(t *testing.T) {
	var counter atomic.Uint64
	server, mirror := listen(t, answers(&counter)), listen(t, mirrors)
	relay := listen(t, relays(server))

	var out strings.Builder
	path := filepath.Join(t.TempDir(), "loopback.json")
	report, err := result.Begin(result.Config{Benchmark: "loopback", Path: path, Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	const requests = 3000
	series, err := round.Run(t.Context(), round.Plan{
		Variants: []round.Variant{asks("direct", server, requests, &counter), asks("relayed", relay, requests, &counter)},
		Rounds:   9, WarmUp: 1, Out: &out, Meter: round.NewProcMeter(),
	})
	if err != nil {
		t.Fatal(err)
	}
	q := round.Question{Row: "request", Case: "one connection", Metric: round.Wall, Variant: "relayed", Yardstick: "direct", Goal: 5}
	if err := series.Report(report, q); err != nil {
		t.Fatal(err)
	}
	if err := report.Finish(); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &out)
	about, err := os.ReadFile(result.AboutPath(path))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", about)
	rows, err := result.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if counter.Load() != 2*10*requests {
		t.Errorf("the server counted %d requests, want those of two variants in ten rounds", counter.Load())
	}
	if rows[0].Ratio <= 1 || rows[0].Value <= rows[0].Yardstick {
		t.Errorf("the relay costs nothing: %+v", rows[0])
	}

	// Something that answers in place of the server is fast, but not a measurement.
	_, err = round.Run(t.Context(), round.Plan{Variants: []round.Variant{asks("mirror", mirror, 10, &counter)}, Rounds: 9})
	if err == nil || !strings.Contains(err.Error(), "it claims 10 operations, and 0 arrived at the far end") {
		t.Errorf("have error %v, want that nothing arrived", err)
	}
}
