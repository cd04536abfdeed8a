package datapath

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ProofState says whether the socket programs of a family are known to be at work.
type ProofState string

// The states of a family.
const (
	Proven  ProofState = "proven"  // a socket of this process met them
	Missed  ProofState = "missed"  // a socket of this process should have met them and did not
	Absent  ProofState = "absent"  // the node has no sockets of that family
	Unknown ProofState = "unknown" // this process cannot tell
)

// Proof is what a dial of this process told about the programs of one family.
type Proof struct {
	Family string // "IPv4" or "IPv6"
	State  ProofState
	Why    string // half a sentence; "" when proven
}

// probeAnswer is what the programs make such a dial fail with: PROBE_ANSWER in bpf/lib/probe.h.
const probeAnswer = unix.ENOANO

// token is what the programs that one Datapath loads know its dials by. It is drawn anew by every process, so those of
// another agent, or of an earlier one, do not answer.
type token uint64

func newToken() token {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // it never fails
		if t := token(binary.LittleEndian.Uint64(b[:])); t.port() != 0 {
			return t
		}
	}
}

func (t token) bytes() []byte { return binary.LittleEndian.AppendUint64(nil, uint64(t)) }
func (t token) port() int     { return int(binary.BigEndian.Uint16(t.bytes())) }

// addr4 is the address of which RFC 7600 says that nothing is ever sent to it.
func (t token) addr4() unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: netip.MustParseAddr("192.0.0.8").As4(), Port: t.port()}
}

// addr6 is in the prefix that RFC 6666 has for what is to be discarded.
func (t token) addr6() unix.Sockaddr {
	addr := netip.MustParseAddr("100::").As16()
	copy(addr[8:], t.bytes())
	return &unix.SockaddrInet6{Addr: addr, Port: t.port()}
}

// dial connects a datagram socket, which sends nothing, and returns the error of connect. Without IPv4 or IPv6 it is
// EAFNOSUPPORT.
func dialProbe(family int, to unix.Sockaddr) error {
	socket, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	return unix.Connect(socket, to)
}

// prove dials for both families.
func (d *Datapath) prove() []Proof {
	proofs := []Proof{{Family: "IPv4"}, {Family: "IPv6"}}
	for i, dial := range []func() error{
		func() error { return dialProbe(unix.AF_INET, d.token.addr4()) },
		func() error { return dialProbe(unix.AF_INET6, d.token.addr6()) },
	} {
		proofs[i].State, proofs[i].Why = d.judge(dial())
	}
	return proofs
}

// judge says what the error of such a dial means.
func (d *Datapath) judge(err error) (ProofState, string) {
	switch {
	case errors.Is(err, probeAnswer):
		return Proven, ""
	case errors.Is(err, unix.EAFNOSUPPORT):
		return Absent, "the node has no sockets of this family"
	case !d.features.CanRefuse:
		return Unknown, "this kernel does not let programs answer"
	}
	got := "the dial was let pass"
	if err != nil {
		got = fmt.Sprintf("the dial met another answer (%v)", err)
	}
	mounts, own, viewErr := ownView()
	if viewErr != nil {
		return Unknown, fmt.Sprintf("the agent cannot tell which cgroup it is in: %v", viewErr)
	}
	inside, known := serves(d.cgroup.path, mounts, own)
	switch {
	case !known:
		return Unknown, fmt.Sprintf("the agent cannot tell whether it is below %s itself", d.cgroup.path)
	case !inside:
		return Unknown, fmt.Sprintf("the agent itself is not below %s, so its own sockets show nothing", d.cgroup.path)
	}
	return Missed, got
}
