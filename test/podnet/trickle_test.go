package podnet

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.io/fairlead/test/rig"
)

const (
	// pace is how often a trickle asks at each place.
	pace = 2 * time.Millisecond
	// hearing is how long a trickle listens for an answer after it was told to end.
	hearing = time.Second
)

// tally is how often a trickle asked, and how often it was answered. Each datagram of young came from a
// socket of its own, and those of old all from one.
type tally struct{ YoungAsked, YoungAnswered, OldAsked, OldAnswered int64 }

// trickle asks echoes at places by UDP without a pause until its input ends, and prints a tally then and for
// each line.
func trickle(args []string) int {
	var t tally
	var asking sync.WaitGroup
	end := make(chan struct{})
	failed := make(chan error, 2*len(args))
	for _, place := range args {
		asking.Go(func() { failed <- t.old(place, end) })
		asking.Go(func() { failed <- t.young(place, end) })
	}
	fmt.Println("ready")
	var err error
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		err = errors.Join(err, json.NewEncoder(os.Stdout).Encode(t.now()))
	}
	close(end)
	asking.Wait()
	close(failed)
	for e := range failed {
		err = errors.Join(err, e)
	}
	if err = errors.Join(err, json.NewEncoder(os.Stdout).Encode(&t)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (t *tally) now() *tally {
	return &tally{
		atomic.LoadInt64(&t.YoungAsked), atomic.LoadInt64(&t.YoungAnswered), atomic.LoadInt64(&t.OldAsked), atomic.LoadInt64(&t.OldAnswered),
	}
}

// old asks from one socket.
func (t *tally) old(place string, end chan struct{}) error {
	conn, err := net.Dial("udp", place)
	if err != nil {
		return err
	}
	if err := patient(conn.(*net.UDPConn)); err != nil {
		return errors.Join(err, conn.Close())
	}
	var listening sync.WaitGroup
	listening.Go(func() {
		buffer := make([]byte, 100)
		for {
			_, err := conn.Read(buffer)
			switch {
			case err == nil:
				atomic.AddInt64(&t.OldAnswered, 1)
			case errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded):
				return
			}
		}
	})
	err = each(end, func() error {
		atomic.AddInt64(&t.OldAsked, 1)
		_, err := conn.Write([]byte("old"))
		return err
	})
	err = errors.Join(err, conn.SetReadDeadline(time.Now().Add(hearing)))
	listening.Wait()
	return errors.Join(err, conn.Close())
}

// young asks from another socket each time.
func (t *tally) young(place string, end chan struct{}) error {
	var listening sync.WaitGroup
	err := each(end, func() error {
		conn, err := net.Dial("udp", place)
		if err != nil {
			return err
		}
		atomic.AddInt64(&t.YoungAsked, 1)
		if _, err := conn.Write([]byte("young")); err != nil {
			return errors.Join(err, conn.Close())
		}
		listening.Go(func() {
			defer conn.Close()
			_ = conn.SetReadDeadline(time.Now().Add(hearing))
			if _, err := conn.Read(make([]byte, 100)); err == nil {
				atomic.AddInt64(&t.YoungAnswered, 1)
			}
		})
		return nil
	})
	listening.Wait()
	return err
}

// each calls ask at the pace of a trickle.
func each(end chan struct{}, ask func() error) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-end:
			return nil
		case <-tick.C:
			if err := ask(); err != nil {
				return err
			}
		}
	}
}

// trickling is a process that trickles.
type trickling struct {
	*rig.Process
	t   *testing.T
	who string
}

// startTrickle lets a pod ask another one from now on, by both families.
func startTrickle(t *testing.T, from, to *pod) *trickling {
	t.Helper()
	places := []string{netip.AddrPortFrom(to.addr[true], 7).String(), netip.AddrPortFrom(to.addr[false], 7).String()}
	c := &trickling{rig.NewChild(t, nil, from.Netns, "trickle", places...), t, from.id + " to " + to.id}
	if line, err := c.ReadLine(); err != nil || line != "ready" {
		t.Fatalf("trickle in %s: %q, %v", from.Netns, line, err)
	}
	return c
}

// now returns how it goes.
func (c *trickling) now() (have tally) {
	c.t.Helper()
	if err := c.Ask(struct{}{}, &have); err != nil {
		c.t.Fatalf("%s: %v", c.who, err)
	}
	return have
}

// stop ends it, and returns how it went.
func (c *trickling) stop() (have tally) {
	c.t.Helper()
	c.Stdin.Close()
	line, err := c.ReadLine()
	if err == nil {
		err = errors.Join(json.Unmarshal([]byte(line), &have), c.Wait())
	}
	if err != nil {
		c.t.Fatalf("%s: %q, %v", c.who, line, err)
	}
	c.t.Logf("%s: %+v", c.who, have)
	if have.YoungAsked == 0 || have.OldAsked == 0 {
		c.t.Errorf("%s: nothing was asked", c.who)
	}
	return have
}

// allAnswered fails if one was not answered.
func (c *trickling) allAnswered() {
	c.t.Helper()
	if have := c.stop(); have.YoungAnswered != have.YoungAsked || have.OldAnswered != have.OldAsked {
		c.t.Errorf("%s: not all were answered: %+v", c.who, have)
	}
}

// noneAnswered fails if one was answered.
func (c *trickling) noneAnswered() {
	c.t.Helper()
	if have := c.stop(); have.YoungAnswered+have.OldAnswered != 0 {
		c.t.Errorf("%s: there were answers: %+v", c.who, have)
	}
}
