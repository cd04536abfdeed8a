package datapath

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ProofState says whether the socket programs of a family are known to work.
type ProofState string

// The states of a family's proof.
const (
	Proven  ProofState = "proven"  // a socket of this process met them
	Missed  ProofState = "missed"  // a socket of this process should have met them and did not
	Absent  ProofState = "absent"  // the node has no sockets of that family
	Unknown ProofState = "unknown" // this process cannot find out
)

// Proof is what a test dial of this process showed about the programs of one family.
type Proof struct {
	Family string     `json:"family"` // "IPv4" or "IPv6"
	State  ProofState `json:"state"`
	Why    string     `json:"why,omitempty"` // half a sentence; "" if proven
}

// Proven reports whether the programs of the family work. If known is false, it cannot be said.
func (p Proof) Proven() (proves, known bool) {
	return p.State == Proven, p.State == Proven || p.State == Missed
}

// probeAnswer is the error with which the programs make a test dial fail: PROBE_ANSWER in
// bpf/lib/sock_ctx.h.
const probeAnswer = unix.ENOANO

// token identifies the test dials of one Datapath to the programs that it loads. Every process
// draws its own, so the programs of another or an earlier agent do not answer.
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

func (t token) port() int { return int(binary.BigEndian.Uint16(t.bytes())) }

// addr4 is an address to which, by RFC 7600, no packet is ever sent.
func (t token) addr4() unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: netip.MustParseAddr("192.0.0.8").As4(), Port: t.port()}
}

// addr6 is in the discard-only prefix of RFC 6666.
func (t token) addr6() unix.Sockaddr {
	addr := netip.MustParseAddr("100::").As16()
	copy(addr[8:], t.bytes())
	return &unix.SockaddrInet6{Addr: addr, Port: t.port()}
}

// dialProbe connects a UDP socket, which sends nothing, and returns the error of connect. If the
// node lacks the family, it is EAFNOSUPPORT.
func dialProbe(family int, to unix.Sockaddr) error {
	socket, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	return unix.Connect(socket, to)
}

// prove makes a test dial for each family.
func (d *cgroupLinks) prove() []Proof {
	proofs := []Proof{{Family: "IPv4"}, {Family: "IPv6"}}
	for i, dial := range []func() error{
		func() error { return dialProbe(unix.AF_INET, d.token.addr4()) },
		func() error { return dialProbe(unix.AF_INET6, d.token.addr6()) },
	} {
		proofs[i].State, proofs[i].Why = d.proofState(dial())
	}
	return proofs
}

// proofState interprets the error of a test dial.
func (d *cgroupLinks) proofState(err error) (ProofState, string) {
	switch {
	case errors.Is(err, probeAnswer):
		return Proven, ""
	case errors.Is(err, unix.EAFNOSUPPORT):
		return Absent, "the node has no sockets of this family"
	case !d.features.CanRefuse:
		return Unknown, "this kernel does not let programs answer"
	}
	got := "no program answered the test dial"
	if err != nil {
		got = fmt.Sprintf("the test dial got another answer (%v)", err)
	}
	inside, known, viewErr := d.cgroup.HoldsOwn()
	if viewErr != nil {
		return Unknown, fmt.Sprintf("the agent cannot tell which cgroup it is in: %v", viewErr)
	}
	switch {
	case !known:
		return Unknown, fmt.Sprintf("the agent cannot tell whether it is itself below %s", d.cgroup.Path)
	case !inside:
		return Unknown, fmt.Sprintf("the agent itself is not below %s, so its own sockets show nothing", d.cgroup.Path)
	}
	return Missed, got
}
