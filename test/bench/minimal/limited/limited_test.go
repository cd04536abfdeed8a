package limited

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// load loads a program that reads from a packet at an offset that the packet contains.
func load() error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // data
			asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // data_end
			asm.Mov.Reg(asm.R4, asm.R2),
			asm.Add.Imm(asm.R4, 1),
			asm.JGT.Reg(asm.R4, asm.R3, "out"),
			asm.LoadMem(asm.R5, asm.R2, 0, asm.Byte),
			asm.And.Imm(asm.R5, 15),
			asm.Add.Reg(asm.R2, asm.R5),
			asm.Mov.Reg(asm.R4, asm.R2),
			asm.Add.Imm(asm.R4, 1),
			asm.JGT.Reg(asm.R4, asm.R3, "out"),
			asm.LoadMem(asm.R5, asm.R2, 0, asm.Byte),
			asm.Mov.Imm(asm.R0, 2).WithSymbol("out"),
			asm.Return(),
		},
	})
	if err != nil {
		return err
	}
	return prog.Close()
}

// Programs load, operations that need CAP_SYS_ADMIN fail, and afterward they work again.
func TestDo(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	admin := func() error {
		// Iterating over the machine's programs needs CAP_SYS_ADMIN. An empty list is not a
		// refusal.
		_, err := ebpf.ProgramGetNextID(0)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := admin(); err != nil {
		t.Fatalf("with all capabilities: %v", err)
	}
	err := Do(func() error {
		if err := admin(); !errors.Is(err, unix.EPERM) {
			t.Errorf("an operation that needs CAP_SYS_ADMIN was not refused: %v", err)
		}
		return errors.Join(Check(), load())
	})
	if err != nil {
		t.Error(err)
	}
	if err := admin(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if Check() == nil {
		t.Error("Check accepts a thread with all capabilities")
	}
}

// The capabilities that Do drops matter, and those that it keeps are needed.
func TestEveryCapabilityIsNeeded(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	for _, without := range []int{unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON} {
		if err := with(agent()&^setOf(without), load); err == nil {
			t.Errorf("the program loads without capability %d", without)
		}
	}
	if err := with(agent(), func() error { return with(setOf(unix.CAP_SYS_ADMIN), load) }); err == nil {
		t.Error("a limited thread got CAP_SYS_ADMIN")
	}
}

// The namespace stays, other threads keep their capabilities, and a panic restores the thread's.
func TestThreads(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	ns := rig.NewNetns(t, "limited")
	before, err := effective()
	if err != nil {
		t.Fatal(err)
	}
	inside := make(chan struct{})
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(done)
		<-inside
		if have, err := effective(); err != nil || have != before {
			t.Errorf("another thread has %#x, %v", uint64(have), err)
		}
	})
	err = ns.Do(func() error {
		return Do(func() error {
			close(inside)
			<-done
			return Check()
		})
	})
	wg.Wait()
	if err != nil {
		t.Error(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = Do(func() error { panic("out") })
	}()
	if have, err := effective(); err != nil || have != before {
		t.Errorf("after a panic %#x are in effect, %v", uint64(have), err)
	}
}
