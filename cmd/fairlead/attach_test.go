package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"fairlead.io/fairlead/test/rig"
)

// TestAgentThatCannotAttachEnds checks that if somebody else has exclusive programs on the cgroup,
// the agent says so and ends, and does not wait for its own goroutines.
func TestAgentThatCannotAttachEnds(t *testing.T) {
	n := newNode(t)
	n.service("198.18.0.1")
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

// TestAgentProvesItsPrograms checks that an agent below the cgroup that it serves proves its
// programs. If another program keeps dials from ours, the agent reports that everywhere, and
// reports when it is over.
func TestAgentProvesItsPrograms(t *testing.T) {
	n := newNode(t)
	n.service("198.18.0.1")
	own := rig.NewCgroupIn(t, n.cgroup, "agent")
	n.startServingIn(own)
	n.run("status", "--wait", "--wait-duration=30s")
	if out := n.run("status"); !strings.Contains(out, "proof  ") || !strings.Contains(out, "IPv4 and IPv6 proven") {
		t.Errorf("status does not say that the programs are proven:\n%s", out)
	}
	n.wantAnswer(readyAddress, "/readyz?verbose", 200, "[+]programs-at-work ok\n")
	n.wantAnswer(metricsAddress, "/metrics", 200, "\nfairlead_programs_proven{family=\"IPv4\"} 1\n",
		"\nfairlead_programs_proven{family=\"IPv6\"} 1\n", "\nfairlead_program_repairs_total 0\n")
	n.agent.Kill()

	// This program runs before ours, because it is further down, and sends every dial to another
	// port.
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, 9), asm.StoreMem(asm.R1, userPort, asm.R2, asm.Word), asm.Mov.Imm(asm.R0, 1), asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	other, err := link.AttachCgroup(link.CgroupOptions{Path: own.Path(), Attach: ebpf.AttachCGroupInet4Connect, Program: prog})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	n.startServingIn(own)
	n.waitFor("the agent says that its programs are not met", func() bool {
		out, err := rig.RunChild(nil, nil, "fairlead", append([]string{"status"}, n.flags...)...)
		var exit *exec.ExitError
		return errors.As(err, &exit) && exit.ExitCode() == exitDegraded && strings.Contains(out, "the agent's own test connections over IPv4 do not go through them")
	})
	n.wantAnswer(readyAddress, "/readyz", 503, "[-]programs-at-work failed: IPv4: ")
	n.wantAnswer(metricsAddress, "/metrics", 200, "\nfairlead_programs_proven{family=\"IPv4\"} 0\n",
		"\nfairlead_programs_proven{family=\"IPv6\"} 1\n", "\nfairlead_degraded 1\n")
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	n.run("status", "--wait", "--wait-duration=30s")
}

// userPort is the offset of the port in struct bpf_sock_addr.
const userPort = 24

// TestAgentAttachesWhatIsNeeded checks that programs that no frontend needs are not attached, and
// that is not a fault; the first frontend brings them.
func TestAgentAttachesWhatIsNeeded(t *testing.T) {
	n := newNode(t)
	n.service("198.18.0.1")
	n.startServing()
	n.run("status", "--wait", "--wait-duration=30s")
	if out := n.run("status"); !strings.Contains(out, "needed programs attached to "+n.cgroup.Path()) {
		t.Errorf("status does not say that some programs are not needed:\n%s", out)
	}
	has := func(program string) bool {
		_, text := n.get(metricsAddress, "/metrics")
		return strings.Contains(text, `fairlead_program_attached{program="`+program+`"} 1`)
	}
	if !has("sock_connect4") || has("sock_sendmsg4") || has("sock_bind6") {
		t.Error("not the programs that a ClusterIP of TCP needs")
	}
	n.wantAnswer(readyAddress, "/readyz", 200)
	n.write("dns.yaml", `
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.53, clusterIPs: [10.96.0.53], ports: [{port: 53, nodePort: 30053, protocol: UDP}]}
`)
	n.waitFor("the programs of UDP and NodePorts", func() bool {
		return has("sock_sendmsg4") && has("sock_recvmsg6") && has("sock_bind6")
	})
	n.run("status", "--wait", "--wait-duration=30s")
}
