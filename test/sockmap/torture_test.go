package sockmap

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

var (
	tortureFor  = flag.Duration("torture", 30*time.Second, "how long connections are tortured, in either way")
	tortureSeed = flag.Uint64("seed", 1, "what their scripts are drawn from")
)

// patience is the longest that anything may keep an end waiting.
const patience = 10 * time.Second

// report is the result of a torture.
type report struct {
	Connections, Resets, Bytes, Retried int64
	Faults                              []string
}

// TestTorture checks that whatever connections do, and whatever is switched meanwhile, each byte
// arrives once and in order, nothing waits forever, and nothing is left behind.
func TestTorture(t *testing.T) {
	for _, blocking := range []bool{false, true} {
		t.Run(fmt.Sprintf("blocking=%v", blocking), func(t *testing.T) {
			limits := sockmap.DefaultLimits()
			// Almost all sockets are in the edge-triggered epoll of Go's runtime too, and who reads by blocking calls
			// does not look again. So nobody has to where such readers take part.
			limits.Blocking, limits.DrainingReaders = blocking, blocking
			w := newTwoPodsAsIs(t, limits)
			p := rig.NewChild(t, nil, nil, "torture", w.pods[0].Path(), w.pods[1].Path(), tortureFor.String(),
				strconv.FormatUint(*tortureSeed, 10), strconv.FormatBool(!blocking))
			answer := make(chan string, 1)
			go func() {
				line, err := p.ReadLine()
				if err != nil {
					line = err.Error()
				}
				answer <- line
			}()
			var line string
			switched := 0
			for random := rand.New(rand.NewPCG(*tortureSeed, 7)); line == ""; switched++ {
				select {
				case line = <-answer:
				case <-time.After(time.Duration(random.IntN(400)) * time.Millisecond):
					w.disturb(random)
				}
			}
			var r report
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatalf("the process says %q", line)
			}
			for _, fault := range r.Faults {
				t.Error(fault)
			}
			tallies, err := w.Tallies()
			w.Must(err)
			t.Logf("%d connections, %d reset, %d MiB, %d reads tried again, %d times switched or restarted\n%v", r.Connections, r.Resets, r.Bytes>>20, r.Retried, switched, tallies)
			if !blocking && r.Retried > 0 {
				t.Errorf("%d reads that wait ended with EAGAIN", r.Retried)
			}
			if r.Connections < victims {
				t.Errorf("%d connections are too few", r.Connections)
			}
			least := uint64(r.Connections) * 2
			if !blocking {
				least /= 8 // most connections are over before their readers have shown that they look again
			}
			if tallies.Redirected.Count < least || tallies.Left == 0 {
				t.Error("too few messages went past TCP, or nobody left the map, for this to prove anything")
			}
			w.Until("the rows of connections to be gone", func() bool { return len(w.pairs()) == 0 })
			w.Until("the sockets to be gone", func() bool { n, err := w.Sockets(); w.Must(err); return n == 0 })
		})
	}
}

// disturb does one of the things that an operator may do at any time.
func (w *twoPods) disturb(random *rand.Rand) {
	switch random.IntN(6) {
	case 0:
		w.Must(w.Switch(false))
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		w.Must(w.Switch(true))
	case 1:
		w.Stop()
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		w.Start()
	case 2:
		w.Must(w.SetRules(nil))
		w.Let(w.pods[:]...)
	case 3:
		_, err := sockmap.Hold(w.BPFFS)
		w.Must(err)
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		_, err = sockmap.Release(w.BPFFS)
		w.Must(err)
	}
}

func tortureMain(args []string) int {
	r, err := torture(args)
	if err != nil {
		r.Faults = append(r.Faults, err.Error())
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		return 1
	}
	return 0
}

// victims is how many connections there are at a time.
const victims = 24

func torture(args []string) (r *report, err error) {
	r = &report{}
	var pods [2]*rig.Netns
	for i := range pods {
		if pods[i], err = rig.OpenNetns("pod", args[i]); err != nil {
			return r, err
		}
	}
	long, err := time.ParseDuration(args[2])
	if err != nil {
		return r, err
	}
	seed, err := strconv.ParseUint(args[3], 10, 64)
	if err != nil {
		return r, err
	}
	rest, err := strconv.ParseBool(args[4])
	if err != nil {
		return r, err
	}
	listeners := map[string]net.Listener{}
	const loopback = "127.0.0.1" // as between an application and its sidecar
	addrs := []string{server4, server6, loopback}
	for _, addr := range addrs {
		if listeners[addr], err = listen(pods[1], addr); err != nil {
			return r, err
		}
		defer listeners[addr].Close()
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	var number atomic.Uint64
	end := time.Now().Add(long)
	for worker := range victims {
		addr, from := addrs[worker%len(addrs)], pods[0]
		if addr == loopback {
			from = pods[1]
		}
		group.Go(func() {
			for time.Now().Before(end) {
				s := newScript(rand.New(rand.NewPCG(seed, number.Add(1))), rest)
				err := s.play(from, listeners[addr], addr, &mu)
				mu.Lock()
				r.Connections++
				r.Bytes += s.bytes.Load()
				r.Retried += s.retried.Load()
				if s.breaks() {
					r.Resets++
				}
				if err != nil && len(r.Faults) < 5 {
					r.Faults = append(r.Faults, fmt.Sprintf("script %d: %v: %+v", s.number, err, s.plan))
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return r, nil
}

func listen(ns *rig.Netns, addr string) (listener net.Listener, err error) {
	config := net.ListenConfig{}
	config.SetMultipathTCP(false)
	err = ns.Do(func() error {
		listener, err = config.Listen(context.Background(), "tcp", net.JoinHostPort(addr, "0"))
		return err
	})
	return listener, err
}
