package bpf

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// A pod that may be asked by ICMP answers, though it may send nothing on its own; an echo with another number,
// and an answer that nobody has asked for, are denied. An error passes if it is about a packet that was
// accepted, in either direction, and else is judged like any ICMP.
func TestPolicyICMP(t *testing.T) {
	policyRouters(t, func(t *testing.T, h *routerPolicies) {
		h.isolate(t, 1, 1, 0)
		h.decide(t, 1, egress, 0, all(denyRule))
		h.decide(t, 1, ingress, 0, all(denyRule))
		h.decide(t, 1, ingress, 1, all(accepted|acceptRule))
		k := h.f.kinds()
		ask := message{from: host(h.addrs[0]), to: host(h.addrs[1]), kind: k.echo, rest: 0x12340007, body: []byte("abcdefgh"), ttl: 64}
		answer := message{from: ask.to, to: ask.from, kind: k.reply, rest: ask.rest, body: ask.body, ttl: 64}
		h.deniedEcho(t, h.pods[1], answer)
		h.pods[0].echo(t, ask)
		h.pods[1].icmp(t, k.echo)
		h.pods[1].echo(t, answer)
		h.pods[0].icmp(t, k.reply)
		answer.rest = 0x12350007
		h.deniedEcho(t, h.pods[1], answer)
		h.deniedEcho(t, h.pods[1], message{from: ask.to, to: ask.from, kind: k.echo, rest: ask.rest, body: ask.body, ttl: 64})

		// a datagram from outside is denied, and so is an error about it; one that pod0 has sent was accepted
		sent := packet{from: h.addrs[0] + ":1000", to: h.addrs[1] + ":80", proto: udp}
		refusal := message{from: ask.to, to: ask.from, kind: k.unreachable, code: k.port, body: sent.bytes()[14:], ttl: 64}
		h.deniedEcho(t, h.pods[1], refusal)
		h.passes(t, h.pods[0], h.pods[1], sent)
		h.pods[1].echo(t, refusal)
		h.pods[0].icmp(t, k.unreachable)
		other := sent
		other.to = h.addrs[1] + ":81"
		refusal.body = other.bytes()[14:]
		h.deniedEcho(t, h.pods[1], refusal)

		// from outside, about what the pod has answered
		back := packet{from: sent.to, to: sent.from, proto: udp}
		h.passes(t, h.pods[1], h.pods[0], back)
		h.outside.echo(t, message{from: host(h.remote), to: ask.to, kind: k.unreachable, code: k.port, body: back.bytes()[14:], ttl: 64})
		h.pods[1].icmp(t, k.unreachable)
		back.to = h.addrs[0] + ":1001"
		h.deniedEcho(t, h.outside, message{from: host(h.remote), to: ask.to, kind: k.unreachable, code: k.port, body: back.bytes()[14:], ttl: 64})
	})
}

// deniedEcho fails unless a message is dropped because of policies.
func (h *routerPolicies) deniedEcho(t *testing.T, from *wire, m message) {
	t.Helper()
	before := h.countedAt(t, "pod", "policy")
	from.echo(t, m)
	for deadline := time.Now().Add(5 * time.Second); h.countedAt(t, "pod", "policy") != before+1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s to %s was not denied", m.from, m.to)
		}
	}
}

// A pod that may send nothing still speaks with its link: without neighbor discovery its node would not find it.
// The same messages to elsewhere would be forwarded, and are denied.
func TestPolicyLink(t *testing.T) {
	h := newRouterPolicies(t, families()["v6"], true)
	h.isolate(t, 1, 1, 0)
	h.decide(t, 1, egress, 0, all(denyRule))
	h.decide(t, 1, ingress, 0, all(denyRule))
	own := netip.MustParseAddr(host(h.addrs[1])).As16()
	say := func(kind byte, to string) message {
		return message{from: host(h.addrs[1]), to: to, kind: kind, body: own[:], ttl: 255}
	}
	sent := func() (n uint64) { // the node's own answers are not asked about
		err := h.maps.PolicyDenials.Lookup(bpf.MapsPolicyDenial{Rule: denyRule, Direction: egress}, &n)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
		return n
	}
	const elsewhere = "2001:db8:5::ffff:ffff"
	for _, c := range []struct {
		what   string
		list   []message
		denied uint64
	}{
		{"its link", []message{
			say(135, "ff02::1:ff00:1"), say(135, host(h.f.node)), say(136, host(h.f.node)), say(136, "fe80::1"), say(143, "ff02::16"),
		}, 0},
		{"elsewhere", []message{say(135, elsewhere), say(136, elsewhere), say(143, elsewhere)}, 3},
	} {
		want := sent() + c.denied + 1
		for _, m := range c.list {
			h.pods[1].echo(t, m)
		}
		h.pods[1].send(t, packet{from: h.addrs[1] + ":1000", to: h.remote + ":80", proto: udp}) // denied behind all of them
		for deadline := time.Now().Add(5 * time.Second); sent() < want && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		}
		if n := sent(); n != want {
			t.Errorf("%s: %d packets are denied by now, want %d", c.what, n, want)
		}
	}
}
