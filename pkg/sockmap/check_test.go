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

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// The agent's own connection bypasses TCP like any other. If its data is corrupted, everything uses
// TCP.
func TestCheck(t *testing.T) {
	rig.Root(t)
	for _, c := range []struct{ how, want string }{
		{"as it is", "passed 1, failed 0, on true, rules 1"},
		{"held", "passed 0, failed 0, on true, rules 1, unable"},
		{"refusing", "passed 0, failed 1, on false, rules 1, at fault"},
		{"hiding", "passed 0, failed 1, on false, rules 1, at fault"},
	} {
		t.Run(c.how, func(t *testing.T) {
			if got, err := checked(rig.BPFFS(t), c.how); err != nil || got != c.want {
				t.Errorf("%s, %v, want %s", got, err, c.want)
			}
		})
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
	rig.Root(t)
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
		"SetRules": s.SetRules(map[Place]Rules{{Netns: 1}: {From: 1}}),
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
			program := spec.Programs[bpf.SockmapProgSockmapMessage]
			first := &program.Instructions[0] // its metadata marks the beginning of the program
			begin := asm.Mov.Reg(asm.R6, asm.R1).WithMetadata(first.Metadata)
			*first = first.WithMetadata(asm.Metadata{})
			program.Instructions = append(asm.Instructions{
				begin, asm.Mov.Imm(asm.R2, 0), asm.Mov.Imm(asm.R3, 1), asm.Mov.Imm(asm.R4, 0),
				asm.FnMsgPopData.Call(), asm.Mov.Reg(asm.R1, asm.R6),
			}, program.Instructions...)
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

// Prove accepts no kernel on which anything goes wrong.
func TestProveFindsFaults(t *testing.T) {
	rig.Root(t)
	for how, want := range map[string]string{
		"as it is": "", "refusing": "send: ", "refusing IPv6": "send: ", "hiding": "bytes came", "passing": "lets nothing bypass TCP", "staying": "sockets did not leave",
	} {
		_, err := Config{Limits: DefaultLimits(), tamper: tampers()[how]}.prove()
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", how, err, want)
		}
	}
}

// checked makes a check with broken programs.
func checked(bpffs, how string) (got string, err error) {
	s, err := Open(Config{BPFFS: bpffs, Limits: DefaultLimits(), Log: slog.New(slog.DiscardHandler), tamper: tampers()[how]})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended, s.Close())
	}()
	if err := errors.Join(s.SetRules(map[Place]Rules{{Netns: 1}: {From: 1, To: 1}}), s.Switch(true)); err != nil {
		return "", err
	}
	if how == "held" {
		if _, err := Hold(bpffs); err != nil {
			return "", err
		}
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(socket)
	netns, err := unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return "", err
	}
	_ = s.Check(ctx, netns) // Checked has the error too
	c := s.Checked()
	rules, err := s.now.rules()
	if err != nil {
		return "", err
	}
	got = fmt.Sprintf("passed %d, failed %d, on %v, rules %d", c.Passed, c.Failed, s.on, len(rules))
	if c.Fault != "" {
		got += ", at fault"
	}
	if c.Unable != "" {
		got += ", unable"
	}
	return got, nil
}

// By TCP nothing is found in which it would differ from itself.
func TestNoDifference(t *testing.T) {
	rig.Root(t)
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
