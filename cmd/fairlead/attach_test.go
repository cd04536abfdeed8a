package main

import (
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"fairlead.io/fairlead/test/rig"
)

// A cgroup that somebody else has for himself: the agent says so and ends, and does not wait for its own goroutines.
func TestAgentThatCannotAttachEnds(t *testing.T) {
	n := newNode(t)
	n.service("127.0.0.1")
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	dir, err := os.Open(n.cgroup.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	exclusive := link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: prog, Attach: ebpf.AttachCGroupInet4Connect}
	if err := link.RawAttachProgram(exclusive); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := link.RawDetachProgram(link.RawDetachProgramOptions{
			Target: exclusive.Target, Program: prog, Attach: exclusive.Attach,
		}); err != nil {
			t.Error(err)
		}
	}()
	out, err := rig.RunChild(nil, nil, "fairlead", append([]string{
		"agent", "--source=" + n.manifests, "--cgroup-root=" + n.cgroup.Path(), "--node-name=node-a",
	}, n.flags...)...)
	if err == nil || !strings.Contains(err.Error(), "attach program sock_connect4") {
		t.Errorf("the agent ended with %v\n%s", err, out)
	}
}
