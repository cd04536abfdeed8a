package sockmap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// The agent's own connection bypasses TCP like any other. If its data is corrupted or lost,
// everything uses TCP, but not if data was late once.
func TestCheck(t *testing.T) {
	rig.MapIterators(t)
	for _, c := range []struct{ how, want string }{
		{"as it is", "passed 1, failed 0, on true, rules 1"},
		{"held", "passed 0, failed 0, on true, rules 1, unable"},
		{"refusing", "passed 0, failed 1, on false, rules 1, at fault twice"},
		{"hiding", "passed 0, failed 1, on false, rules 1, at fault twice"},
		{"hiding at first", "passed 1, failed 0, on true, rules 1"},
		{"spoiling", "passed 0, failed 1, on false, rules 1, at fault once"},
	} {
		t.Run(c.how, func(t *testing.T) {
			if got, err := checked(rig.BPFFS(t), c.how); err != nil || got != c.want {
				t.Errorf("%s, %v, want %s", got, err, c.want)
			}
		})
	}
}

// Checks go on until they are to end, or one has found something wrong.
func TestRunChecks(t *testing.T) {
	rig.MapIterators(t)
	netns, err := netnsCookie()
	if err != nil {
		t.Fatal(err)
	}
	for how, fails := range map[string]bool{"as it is": false, "spoiling": true} {
		t.Run(how, func(t *testing.T) {
			s, stop, err := running(rig.BPFFS(t), how)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- s.RunChecks(ctx, netns) }()
			if fails {
				err = <-ended // by itself
			} else {
				for s.Checked().Passed == 0 && len(ended) == 0 {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(10 * time.Millisecond)
				if len(ended) > 0 {
					t.Error("the checks have ended")
				}
				cancel()
				err = <-ended
			}
			cancel()
			if c := s.Checked(); err != nil || c.Passed+c.Failed != 1 || (c.Failed == 1) != fails || s.on == fails {
				t.Errorf("%v, %+v, on: %v", err, c, s.on)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Only data that differs or is missing for good makes everything use TCP.
func TestCheckData(t *testing.T) {
	late, full := errors.New("99 of 100 bytes came: timed out"), fmt.Errorf("send: %w", unix.ENOMEM)
	ended := fmt.Errorf("read after 3 bytes: %w", errEnded)
	unmade := errors.New("it does not bypass TCP")
	for name, c := range map[string]struct {
		faults []error // of one attempt after another
		err    error   // of the last
		wrong  bool
		want   string
	}{
		"all is well":                    {faults: []error{nil}},
		"no attempt":                     {faults: []error{nil}, err: unmade, want: unmade.Error()},
		"other data":                     {faults: []error{fmt.Errorf("request 1: %w", errWrong)}, wrong: true, want: "request 1: " + errWrong.Error()},
		"an end too early":               {faults: []error{ended}, wrong: true, want: ended.Error()},
		"no memory to send":              {faults: []error{full}, want: full.Error()},
		"no room to send":                {faults: []error{fmt.Errorf("send: %w", unix.EAGAIN)}, want: "send: resource temporarily unavailable"},
		"no memory to read":              {faults: []error{errors.Join(unix.ENOBUFS, errEnded)}, want: "no buffer space available\n" + errEnded.Error()},
		"other data, and no memory then": {faults: []error{errors.Join(errWrong, full)}, wrong: true, want: errWrong.Error() + "\n" + full.Error()},
		"late once":                      {faults: []error{late, nil}},
		"late twice":                     {faults: []error{late, late}, wrong: true, want: "on two connections in a row: " + late.Error() + "; " + late.Error()},
		"late, then other data":          {faults: []error{late, errWrong}, wrong: true, want: errWrong.Error()},
		"late, then no memory":           {faults: []error{late, full}, want: full.Error()},
		"late, then no attempt":          {faults: []error{late, nil}, err: unmade, want: unmade.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			left := c.faults
			s := &Sockmap{cfg: Config{Log: slog.New(slog.DiscardHandler)}}
			err := s.checkData(func() (fault, err error) {
				if len(left) == 0 {
					t.Fatal("another attempt")
				}
				if fault, left = left[0], left[1:]; len(left) == 0 {
					err = c.err
				}
				return fault, err
			})
			var found wrong
			if errors.As(err, &found) != c.wrong || (err == nil) != (c.want == "") || err != nil && err.Error() != c.want || len(left) > 0 {
				t.Errorf("%v, wrong %v, %d attempts left, want %q", err, errors.As(err, &found), len(left), c.want)
			}
		})
	}
}

// What an attempt has closed is not closed again, when its number may be another file's.
func TestAttemptClosesOnce(t *testing.T) {
	rig.MapIterators(t)
	s, stop, err := running(rig.BPFFS(t), "as it is")
	if err != nil {
		t.Fatal(err)
	}
	listening, at, err := listener()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listening)
	netns, err := netnsCookie()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.setOwn(map[Endpoint]Rules{{Netns: netns}: {From: checkRule, To: checkRule}}); err != nil {
		t.Fatal(err)
	}
	number := -1
	fault, err := s.attempt(t.Context(), listening, at, func(e *exercise) error {
		number = e.client
		if err := e.endAtOnce(); err != nil {
			return err
		}
		return unix.Dup3(listening, number, unix.O_CLOEXEC) // another file that gets the number
	})
	if err := errors.Join(fault, err, stop()); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(number); err != nil {
		t.Errorf("another file is closed: %v", err)
	}
}

// Whoever else dials the agent's own listener is not taken for the agent.
func TestCheckBesideStranger(t *testing.T) {
	listening, at, err := listener()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listening)
	strangers := make([]int, 3)
	for i := range strangers {
		if strangers[i], err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(strangers[i])
		if err := unix.Connect(strangers[i], at); err != nil {
			t.Fatal(err)
		}
	}
	e, err := connect(listening, at)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	if err := e.converse(3, 100); err != nil {
		t.Error(err)
	}
	for _, fd := range strangers {
		if err := waitFor(fd, unix.POLLRDHUP); err != nil {
			t.Errorf("a stranger's connection is not closed: %v", err)
		}
	}
}

// Whoever still watches or checks connections after Close gets an error.
func TestClosed(t *testing.T) {
	rig.MapIterators(t)
	s, err := Open(Config{BPFFS: rig.BPFFS(t), Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, pairs := s.Pairs()
	_, state := s.State()
	_, tallies := s.Tallies()
	for what, err := range map[string]error{
		"Pairs": pairs, "State": state, "Tallies": tallies, "Check": s.Check(context.Background(), 1), "Switch": s.Switch(true),
		"SetRules": s.SetRules(map[Endpoint]Rules{{Netns: 1}: {From: 1}}),
	} {
		if err == nil {
			t.Errorf("%s is not refused", what)
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("once more: %v", err)
	}
}

// tampers return changes that break the programs in one way each.
func tampers() map[string]func(*ebpf.CollectionSpec) {
	return map[string]func(*ebpf.CollectionSpec){
		"refusing": func(spec *ebpf.CollectionSpec) { // messages that bypass TCP are lost
			spec.Programs[bpf.SockmapProgSockmapMessage].Instructions = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
		},
		"hiding": func(spec *ebpf.CollectionSpec) { // the first byte of every message is lost
			before(spec, append(hide(), asm.Mov.Reg(asm.R1, asm.R6))...)
		},
		"hiding what comes before half an end": func(spec *ebpf.CollectionSpec) { hideOf(spec, lastPending) },
		"hiding what comes before an end":      func(spec *ebpf.CollectionSpec) { hideOf(spec, lastAtOnce) },
		"hiding at first": func(spec *ebpf.CollectionSpec) { // only until the first connection has been given up
			var now unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
				panic(err)
			}
			hiding := append(asm.Instructions{
				asm.FnKtimeGetNs.Call(), asm.LoadImm(asm.R1, now.Nano()+patience.Nanoseconds(), asm.DWord),
				asm.JGT.Reg(asm.R0, asm.R1, "past"), asm.Mov.Reg(asm.R1, asm.R6),
			}, hide()...)
			before(spec, append(hiding, asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("past"))...)
		},
		"spoiling": func(spec *ebpf.CollectionSpec) { // the first byte of every message differs
			const data, end = 0, 8 // in struct sk_msg_md
			before(spec,
				asm.Mov.Imm(asm.R2, 0), asm.Mov.Imm(asm.R3, 1), asm.Mov.Imm(asm.R4, 0), asm.FnMsgPullData.Call(),
				asm.LoadMem(asm.R2, asm.R6, data, asm.DWord), asm.LoadMem(asm.R3, asm.R6, end, asm.DWord),
				asm.Mov.Reg(asm.R4, asm.R2), asm.Add.Imm(asm.R4, 1), asm.JGT.Reg(asm.R4, asm.R3, "past"),
				asm.StoreImm(asm.R2, 0, 0xff, asm.Byte),
				asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("past"))
		},
		"passing": func(spec *ebpf.CollectionSpec) { // nothing bypasses TCP
			spec.Programs[bpf.SockmapProgSockmapMessage].Instructions = asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}
		},
		"refusing IPv6": func(spec *ebpf.CollectionSpec) {
			program := spec.Programs[bpf.SockmapProgSockmapMessage]
			first := &program.Instructions[0]
			const family = 16 // in struct sk_msg_md
			begin := asm.LoadMem(asm.R2, asm.R1, family, asm.Word).WithMetadata(first.Metadata)
			*first = first.WithMetadata(asm.Metadata{}).WithSymbol("rest")
			program.Instructions = append(asm.Instructions{
				begin, asm.JNE.Imm(asm.R2, unix.AF_INET6, "rest"), asm.Mov.Imm(asm.R0, 0), asm.Return(),
			}, program.Instructions...)
		},
		"staying": func(spec *ebpf.CollectionSpec) { // no socket leaves the map
			spec.Programs[bpf.SockmapProgSockmapSweep].Instructions = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
		},
	}
}

// before has the program that decides about a message do something else first, with its context in
// R1 and R6. It must leave that in R1.
func before(spec *ebpf.CollectionSpec, do ...asm.Instruction) {
	program := spec.Programs[bpf.SockmapProgSockmapMessage]
	first := &program.Instructions[0] // its metadata marks the beginning of the program
	begin := asm.Mov.Reg(asm.R6, asm.R1).WithMetadata(first.Metadata)
	*first = first.WithMetadata(asm.Metadata{})
	program.Instructions = append(append(asm.Instructions{begin}, do...), program.Instructions...)
}

// hide removes the first byte of the message in R1.
func hide() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R2, 0), asm.Mov.Imm(asm.R3, 1), asm.Mov.Imm(asm.R4, 0), asm.FnMsgPopData.Call()}
}

// hideOf removes the first byte of messages of one size.
func hideOf(spec *ebpf.CollectionSpec, size int32) {
	const bytes = 68 // in struct sk_msg_md
	begin := asm.Instructions{asm.LoadMem(asm.R2, asm.R6, bytes, asm.Word), asm.JNE.Imm(asm.R2, size, "past")}
	before(spec, append(append(begin, hide()...), asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("past"))...)
}

// Prove accepts no kernel on which anything goes wrong.
func TestProveFindsFaults(t *testing.T) {
	rig.MapIterators(t)
	for how, want := range map[string]string{
		"as it is": "", "refusing": "send: ", "refusing IPv6": "send: ", "hiding": "bytes came", "passing": "lets nothing bypass TCP", "staying": "sockets did not leave",
		"hiding what comes before half an end": "shutting down one direction: ", "hiding what comes before an end": "closing right after sending: ",
	} {
		_, err := Config{Limits: DefaultLimits(), tamper: tampers()[how]}.prove()
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", how, err, want)
		}
	}
}

// running opens and runs broken programs until stop is called. Rules are set.
func running(bpffs, how string) (s *Sockmap, stop func() error, err error) {
	if s, err = Open(Config{BPFFS: bpffs, Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler), tamper: tampers()[how]}); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	stop = func() error {
		cancel()
		return errors.Join(<-ended, s.Close())
	}
	if err := errors.Join(s.SetRules(map[Endpoint]Rules{{Netns: 1}: {From: 1, To: 1}}), s.Switch(true)); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return s, stop, nil
}

// checked makes a check with broken programs.
func checked(bpffs, how string) (got string, err error) {
	s, stop, err := running(bpffs, how)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if how == "held" {
		if _, err := Hold(bpffs); err != nil {
			return "", err
		}
	}
	netns, err := netnsCookie()
	if err != nil {
		return "", err
	}
	began := time.Now()
	_ = s.Check(context.Background(), netns) // Checked has the error too
	if how == "hiding at first" && time.Since(began) < patience {
		return "", errors.New("nothing was hidden any more")
	}
	c := s.Checked()
	rules, err := s.now.rules()
	if err != nil {
		return "", err
	}
	got = fmt.Sprintf("passed %d, failed %d, on %v, rules %d", c.Passed, c.Failed, s.on, len(rules))
	switch {
	case strings.Contains(c.Fault, "on two connections"):
		got += ", at fault twice"
	case c.Fault != "":
		got += ", at fault once"
	}
	if c.Unable != "" {
		got += ", unable"
	}
	return got, nil
}

// By TCP nothing is found in which it would differ from itself.
func TestNoDifference(t *testing.T) {
	rig.MapIterators(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	listening, at, err := listener()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listening)
	e, err := connect(listening, at)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	message := pattern(1, 100)
	if _, err := unix.Write(e.client, message); err != nil {
		t.Fatal(err)
	}
	if found, err := e.readAll(message); found != "" || err != nil {
		t.Errorf("%q, %v", found, err)
	}
	if found, err := e.readThroughSignals(); found != "" || err != nil {
		t.Errorf("%q, %v", found, err)
	}
	if err := e.converse(3, 100); err != nil {
		t.Error(err)
	}
}
