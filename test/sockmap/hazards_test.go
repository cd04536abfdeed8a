package sockmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/sockmap"
)

// short returns two pods with a connection that bypasses TCP.
func short(t *testing.T, limits sockmap.Limits) (*twoPods, *talk) {
	t.Helper()
	w := newTwoPods(t, limits)
	c := w.dial(server4)
	c.shorten()
	return w, c
}

// shorten makes the connection bypass TCP.
func (t *talk) shorten() {
	t.w.T.Helper()
	t.ask(10, 100)
	t.w.Until("admission", func() bool { return t.w.only().State == "accelerated" })
	t.ask(1, 100) // so that both ends have read what came by TCP
	t.w.Until("the first message past TCP", func() bool { t.ask(1, 100); return t.w.only().Redirected != [2]uint64{} })
}

func (t *talk) ok(format string, args ...any) {
	t.w.T.Helper()
	if got := t.do(format, args...); got != "ok" {
		t.w.T.Fatalf(format+": %s", append(args, got)...)
	}
}

// excluded fails the test unless the connection is excluded for this reason, and its sockets leave
// the map without losing a byte.
func (w *twoPods) excluded(c *talk, why string) {
	w.T.Helper()
	w.Until("it to be excluded", func() bool { return w.only().State == "excluded" })
	if p := w.only(); p.Exclusion != why {
		w.T.Errorf("it is excluded for %q, and should be for %q", p.Exclusion, why)
	}
	w.Until("the sockets to leave", func() bool { return w.only().Inside == 0 })
	before := w.only().Redirected
	c.ask(20, 1000)
	if after := w.only().Redirected; after != before {
		w.T.Errorf("%v bytes went past TCP, %v before", after, before)
	}
}

// TestStream checks that a sender that keeps sending is left to TCP, which is better at it, and
// bypasses TCP again once it converses again.
func TestStream(t *testing.T) {
	w, c := short(t, sockmap.DefaultLimits())
	c.ok("stream 2000 700")
	w.Until("the sockets to leave", func() bool { return w.only().State == "watched" && w.only().Inside == 0 })
	p := w.only()
	if most := uint64(16*700 + 300); p.Redirected[0] > most {
		t.Errorf("%d bytes of the stream went past TCP, at the most %d should", p.Redirected[0], most)
	}
	c.ask(8, 100)
	if p := w.only(); p.State != "watched" {
		t.Errorf("after eight requests it is %q again", p.State)
	}
	c.ask(40, 100)
	w.Until("admission", func() bool { return w.only().State == "accelerated" })
	c.ask(10, 100)
	if after := w.only().Redirected; after[0] == p.Redirected[0] {
		t.Error("it does not go past TCP again")
	}
}

// TestHoard checks that a reader that does not read stops its sender at the budget plus what TCP's
// windows hold, whatever the sender does, and gets all of it in the end.
func TestHoard(t *testing.T) {
	for _, how := range []string{"hoard", "whisper"} {
		t.Run(how, func(t *testing.T) {
			limits := sockmap.DefaultLimits()
			limits.Run = 2 * limits.Budget / hoarded // or the run would end before the budget is used up
			w, c := short(t, limits)
			before, passed := w.only().Redirected[0], w.tallies().Passed["budget"].Count
			c.ok("%s %d", how, 64<<20)
			p := w.only()
			t.Logf("%d bytes wait past TCP, %d went by it", p.Redirected[0]-before, p.Passed[0])
			if waiting := p.Redirected[0] - before; waiting > uint64(w.Limits.Budget) || waiting < uint64(w.Limits.Budget)/2 {
				t.Errorf("%d bytes wait past TCP, of a budget of %d", waiting, w.Limits.Budget)
			}
			if w.tallies().Passed["budget"].Count == passed {
				t.Error("no message went by TCP for the budget")
			}
			c.ok("drain")
			c.ask(10, 100)
		})
	}
}

// TestBabble checks that two ends cannot pile up kernel memory with messages so short that each
// takes much more memory than it has bytes.
func TestBabble(t *testing.T) {
	limits := sockmap.DefaultLimits()
	limits.Run, limits.Stream = 1<<20, 1<<20 // or they would leave for streaming
	w, c := short(t, limits)
	before := w.redirected()
	c.ok("babble 5000")
	if waiting := w.redirected() - before; waiting > 2*uint64(w.Limits.Budget)/1000 || waiting < 100 {
		t.Errorf("%d messages wait past TCP, at either end, of a budget of %d", waiting, w.Limits.Budget)
	}
	c.ok("hark 5000")
	before = w.redirected()
	c.ask(20, 100)
	if w.redirected() == before {
		t.Error("they do not go past TCP again")
	}
}

// TestSplice checks that a connection whose reader uses splice is excluded before any data bypasses
// TCP, because splice would never see that data, and that it stays excluded.
func TestSplice(t *testing.T) {
	w := newTwoPods(t, sockmap.DefaultLimits())
	c := w.dial(server4)
	c.ask(6, 100)
	c.ok("splice")
	c.ask(20, 100)
	w.excluded(c, "splice")
	if tallies, err := w.Tallies(); err != nil || tallies.Redirected.Count != 0 || tallies.Admitted != 0 {
		t.Errorf("%+v, %v", tallies, err)
	}
}

// TestLateSplice checks that a reader that first splices while data waits that bypassed TCP, which
// splice does not see, gets nothing out of order: the sender may not send by TCP what would be read
// before the waiting data. A reader that then uses another call gets that data.
func TestLateSplice(t *testing.T) {
	w, c := short(t, sockmap.DefaultLimits())
	c.ok("late")
	tallies, err := w.Tallies()
	w.Must(err)
	if p := w.only(); p.Exclusion != "splice" || tallies.Passed["lost"].Count != 1 {
		t.Errorf("%+v, %+v", p, tallies)
	}
	w.excluded(c, "splice")
}

// TestSpliceOfNothing checks that an end that splices when nothing waits for it leaves the map, and
// that the other end, which still has something to read there, can go on sending to it.
func TestSpliceOfNothing(t *testing.T) {
	w, c := short(t, sockmap.DefaultLimits())
	c.ok("strand")
	w.Until("the one to leave that has read all", func() bool { return w.only().Inside == 1 })
	c.ok("recover")
	w.excluded(c, "splice")
}

// TestSplicer checks that once a process has read by splice, all its connections are excluded: it
// may splice any of them at any time.
func TestSplicer(t *testing.T) {
	w := newTwoPods(t, sockmap.DefaultLimits())
	c := w.dial(server4)
	c.ok("splice")
	c.ok("close")
	c.ok("redial")
	c.ask(20, 100)
	w.excluded(c, "program")
}

// TestExcept checks that listed programs are excluded, whatever the names of their threads.
func TestExcept(t *testing.T) {
	limits := sockmap.DefaultLimits()
	limits.Except = []string{"another", "exe"} // "exe" is the name of the test's child processes
	w := newTwoPods(t, limits)
	c := w.dial(server4)
	c.ask(20, 100)
	w.excluded(c, "program")
}

// TestReads checks that connections are left to TCP if a read uses flags that mean something else
// without TCP, or if a socket waits for more than has arrived.
func TestReads(t *testing.T) {
	for _, c := range []struct{ do, why string }{
		{"receive 256", "flags"}, // MSG_WAITALL
		{"receive 32", "flags"},  // MSG_TRUNC
		{"lowat 50", "lowat"},
		{"zerocopy", "zerocopy"},
		{"stamp", "control"},
		{"stamping", "control"},
		{"wait 100", "blocking"},
		{"recvmmsg", "way"}, {"uring 0", "way"}, {"uring 1", "way"},
		{"mapped", "splice"}, // TCP_ZEROCOPY_RECEIVE
	} {
		t.Run(c.do, func(t *testing.T) {
			w := newTwoPods(t, sockmap.DefaultLimits())
			talk := w.dial(server4)
			talk.ask(6, 100)
			talk.ok("%s", c.do)
			talk.ask(20, 100)
			w.excluded(talk, c.why)
		})
	}
}

// TestLateLowat checks that a socket that waits for more than has arrived after admission gets it.
func TestLateLowat(t *testing.T) {
	w, c := short(t, sockmap.DefaultLimits())
	before := w.only()
	c.ok("lowat 50")
	c.ask(20, 1000)
	if p := w.only(); p.Redirected[0] > before.Redirected[0] {
		t.Errorf("%+v", p)
	}
}

// TestReaderOfBefore checks that a reader that waits in TCP at admission gets what is sent then.
func TestReaderOfBefore(t *testing.T) {
	limits := sockmap.DefaultLimits()
	limits.Blocking = true
	w := newTwoPods(t, limits)
	c := w.dial(server4)
	c.ask(7, 100)
	for range 5 {
		// The server waits before its client sends the message that makes them a conversation.
		c.ok("wait 100")
		c.ok("answer 100")
	}
	w.Until("admission", func() bool { return w.only().State == "accelerated" })
	for range 5 {
		c.ok("wait 100")
		c.ok("answer 100")
	}
	if p := w.only(); p.Redirected[0] == 0 {
		t.Errorf("%+v", p)
	}
}

// TestRules checks that a connection bypasses TCP only if one rule allows both its ends.
func TestRules(t *testing.T) {
	w := newTwoPods(t, sockmap.DefaultLimits())
	client, server := w.Cookie(w.pods[0]), w.Cookie(w.pods[1])
	for _, c := range []struct {
		name  string
		rules map[sockmap.Endpoint]sockmap.Rules
		want  bool
	}{
		{"nobody", nil, false},
		{"one rule has both", map[sockmap.Endpoint]sockmap.Rules{{Netns: client}: {From: 2}, {Netns: server}: {To: 6}}, true},
		{"two rules have one each", map[sockmap.Endpoint]sockmap.Rules{{Netns: client}: {From: 1}, {Netns: server}: {To: 2}}, false},
		{"the other way", map[sockmap.Endpoint]sockmap.Rules{{Netns: client}: {To: 1}, {Netns: server}: {From: 1}}, false},
		{"the client alone", map[sockmap.Endpoint]sockmap.Rules{{Netns: client}: {From: 1, To: 1}}, false},
		{"the server alone", map[sockmap.Endpoint]sockmap.Rules{{Netns: server}: {From: 1, To: 1}}, false},
		{"another port", map[sockmap.Endpoint]sockmap.Rules{{Netns: client}: {From: 1}, {Netns: server, Port: 1}: {To: 1}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.T = t
			w.Must(w.SetRules(c.rules))
			talk := w.dial(server4)
			talk.ask(20, 100)
			if got := len(w.pairs()) == 1; got != c.want {
				t.Errorf("%+v", w.pairs())
			}
			talk.ok("close")
			w.Until("nothing to be known", func() bool { return len(w.pairs()) == 0 })
		})
	}
}

// TestSwitch checks that switching off takes effect at once for all connections and empties the
// map, and that connections bypass TCP again once it is switched on.
func TestSwitch(t *testing.T) {
	w, c := short(t, sockmap.DefaultLimits())
	w.Must(w.Switch(false))
	before := w.only().Redirected
	c.ask(10, 1000)
	if after := w.only().Redirected; after != before {
		t.Errorf("%v bytes went past TCP, %v before", after, before)
	}
	w.Until("the map to be empty", func() bool { n, err := w.Sockets(); w.Must(err); return n == 0 })
	w.Must(w.Switch(true))
	c.shorten()
}

// TestWithoutAgent checks that ends that start to converse without an agent bypass TCP with one.
func TestWithoutAgent(t *testing.T) {
	w := newTwoPods(t, sockmap.DefaultLimits())
	w.Stop()
	c := w.dial(server4)
	c.ask(20, 100)
	w.Start()
	w.Until("admission", func() bool { return w.only().State == "accelerated" })
}

// TestTakeOver checks that another agent goes on with what it finds, and that one with other
// programs lets go of it without losing data.
func TestTakeOver(t *testing.T) {
	w, c := short(t, sockmap.DefaultLimits())
	c.ok("hoard %d", 100<<10)
	w.Stop()
	w.Start()
	if p := w.only(); p.State != "accelerated" {
		t.Errorf("%+v", p)
	}
	w.Stop()
	w.Limits.Budget *= 2
	w.disguise()
	w.Start()
	w.Let(w.pods[:]...)
	w.Must(w.Switch(true))
	// Nothing waits for the client, so its socket may have left already.
	if n, err := w.Sockets(); err != nil || n == 0 {
		t.Errorf("%d sockets are in the maps, %v: what waits there would be lost", n, err)
	}
	c.ok("drain")
	c.ask(10, 100)
	w.Until("the former programs to be gone", func() bool {
		left, err := os.ReadDir(sockmap.Dir(w.BPFFS))
		w.Must(err)
		return len(left) == 1
	})
	w.Until("it to go past TCP by the new programs", func() bool { c.ask(40, 100); return w.only().State == "accelerated" })
	before := w.redirected()
	c.ask(10, 100)
	if w.redirected() == before {
		t.Errorf("nothing goes past TCP: %+v", w.only())
	}
}

// disguise makes what is pinned look like another version's, with a program that this version lacks
// and without a map that it has.
func (w *twoPods) disguise() {
	w.T.Helper()
	reads, err := filepath.Glob(filepath.Join(sockmap.Dir(w.BPFFS), "*", bpf.SockmapProgSockmapRead))
	w.Must(err)
	if len(reads) != 1 {
		w.T.Fatalf("there are %v", reads)
	}
	dir := filepath.Dir(reads[0])
	w.Must(os.Rename(reads[0], filepath.Join(dir, "sockmap_establish")))
	w.Must(os.Remove(filepath.Join(dir, "halves")))
}

// TestHold checks that an operator's "off" holds at once, without an agent and for later ones.
func TestHold(t *testing.T) {
	w, c := short(t, sockmap.DefaultLimits())
	for _, agent := range []string{"none", "the same", "of another version"} {
		w.Stop()
		found, err := sockmap.Hold(w.BPFFS)
		w.Must(err)
		switch agent {
		case "of another version":
			w.Limits.Run++
			fallthrough
		case "the same":
			w.Start()
			w.Let(w.pods[:]...)
			w.Must(w.Switch(true))
		}
		if !found {
			t.Fatal("there is nothing to hold")
		}
		before := w.redirected()
		c.ask(20, 1000)
		fresh := w.dial(server4)
		fresh.ask(20, 1000)
		if after := w.redirected(); after != before {
			t.Errorf("agent %s: %d messages went past TCP, %d before", agent, after, before)
		}
		fresh.ok("close")
		if !w.Runs() {
			w.Start()
		}
		w.Until("the sockets to leave", func() bool { n, err := w.Sockets(); w.Must(err); return n == 0 })
		_, err = sockmap.Release(w.BPFFS)
		w.Must(err)
		if agent == "of another version" {
			c = w.dial(server4)
		}
		c.ask(40, 100)
		w.Until("somebody to go past TCP", func() bool { c.ask(1, 100); return w.redirected() > before })
	}
}

// redirected returns how many messages bypassed TCP.
func (w *twoPods) redirected() uint64 {
	w.T.Helper()
	if !w.Runs() {
		w.Start()
		defer w.Stop()
	}
	tallies, err := w.Tallies()
	w.Must(err)
	return tallies.Redirected.Count
}

// TestRetire checks that an agent that is to use TCP for everything does so at once, and removes
// what another agent left once it has been read.
func TestRetire(t *testing.T) {
	w, c := short(t, sockmap.DefaultLimits())
	c.ok("hoard %d", 100<<10)
	before := w.only().Redirected
	w.Stop()
	retired, err := sockmap.Retire(w.BPFFS, slog.New(slog.DiscardHandler))
	w.Must(err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- errors.Join(retired.Run(ctx), retired.Close()) }()
	for i := range 5 { // of which the server has read nothing yet
		c.ok("answer %d", 1000+i)
	}
	if view, err := sockmap.Read(w.BPFFS); err != nil || view.On || len(view.Pairs) != 1 || view.Pairs[0].Redirected != before {
		t.Errorf("%v bytes had gone past TCP: %+v, %v", before, view, err)
	}
	c.ok("drain")
	w.Until("all to be gone", func() bool {
		left, err := os.ReadDir(sockmap.Dir(w.BPFFS))
		w.Must(err)
		return len(left) == 0
	})
	c.ask(10, 100)
	cancel()
	w.Must(<-ended)
	if again, err := sockmap.Retire(w.BPFFS, nil); err != nil || again != nil {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestRemove checks that Remove waits until all data has been read.
func TestRemove(t *testing.T) {
	w, c := short(t, sockmap.DefaultLimits())
	c.ok("hoard %d", 100<<10)
	w.Stop()
	removed := make(chan error, 1)
	go func() {
		done, err := sockmap.Remove(w.BPFFS)
		if err == nil && !done {
			err = errors.New("there was nothing to remove")
		}
		removed <- err
	}()
	select {
	case err := <-removed:
		t.Fatalf("it is gone with what waited: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	c.ok("drain")
	w.Must(<-removed)
	c.ask(10, 100)
	if _, err := os.Stat(sockmap.Dir(w.BPFFS)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is left", sockmap.Dir(w.BPFFS))
	}
}

// TestRulesTaken checks that a connection that rules no longer allow uses TCP and loses no data.
func TestRulesTaken(t *testing.T) {
	w, c := short(t, sockmap.DefaultLimits())
	c.ok("hoard %d", 100<<10)
	w.Must(w.SetRules(map[sockmap.Endpoint]sockmap.Rules{{Netns: w.Cookie(w.pods[0])}: {From: 1}, {Netns: w.Cookie(w.pods[1])}: {To: 2}}))
	w.Until("the connection to be excluded", func() bool { return w.only().Exclusion == "rules" })
	time.Sleep(300 * time.Millisecond) // time for the agent to look at it several times
	if p := w.only(); p.Inside == 0 {
		t.Errorf("a socket leaves with what it has not read: %+v", p)
	}
	c.ok("drain")
	w.excluded(c, "rules")

	// It bypasses TCP again once any rule allows both ends.
	before := w.only().Redirected
	w.Must(w.SetRules(map[sockmap.Endpoint]sockmap.Rules{{Netns: w.Cookie(w.pods[0])}: {From: 4}, {Netns: w.Cookie(w.pods[1])}: {To: 4}}))
	w.Until("it to go past TCP again", func() bool { c.ask(10, 100); return w.only().State == "accelerated" && w.only().Redirected != before })
	if p := w.only(); p.Exclusion != "" {
		t.Errorf("it is still said to be excluded: %+v", p)
	}
}

// TestLeaveAtWork checks that sockets stay in the map while a call of the owner is at work on one
// of them, which may be about to send, and leave once it returns.
func TestLeaveAtWork(t *testing.T) {
	limits := sockmap.DefaultLimits()
	limits.Blocking = true
	w, c := short(t, limits)
	if _, err := fmt.Fprintln(c.Stdin, "linger 100"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // time for it to start waiting
	w.Must(w.Switch(false))
	time.Sleep(500 * time.Millisecond) // time for the agent to look at it several times
	if p := w.only(); p.Inside != 2 {
		t.Errorf("they leave while one reads: %+v", p)
	}
	c.expect("ok")
	w.Until("both to leave", func() bool { return w.only().Inside == 0 })
	c.ask(10, 100)
}
