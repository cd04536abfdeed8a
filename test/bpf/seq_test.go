package bpf

import (
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// Where the client and the backend of a conversation are, in sequence numbers.
const (
	clientAt  = 0x12345678
	backendAt = 0xfedcba98
)

// conversation is an established flow of TCP or SCTP to a backend on another node, or on this one.
type conversation struct {
	*bareNode
	client, vip, end, pod string
	local                 bool
	proto                 byte
}

// converse establishes a flow in which both ends have sent something.
func (w *bareNode) converse(t *testing.T, f family, local bool, proto byte) *conversation {
	t.Helper()
	c := &conversation{bareNode: w, client: f.client + ":4000", vip: f.node + ":30080", end: f.client + ":4000", pod: f.pod + ":8080", local: local, proto: proto}
	w.service(t, f.any+":30080", proto, maps.NodePort, c.pod, local)
	verdict, out := w.run(t, w.in, packet{from: c.client, to: c.vip, proto: proto, flags: syn, seq: clientAt - 1}.bytes())
	if verdict != "pass" {
		t.Fatalf("the first packet: %s; counted: %v", verdict, w.reasons(t))
	}
	c.end = endOf(out, f)
	if proto == sctp { // what each end asks for is in the other's packets
		c.reply(t, "answer", syn|ack, backendAt, clientAt-1)
		c.request(t, "cookie", ack, 0, backendAt)
		c.reply(t, "data", ack, 0, clientAt-1)
	} else {
		c.reply(t, "answer", syn|ack, backendAt-1, clientAt)
		c.request(t, "acknowledgment", ack, clientAt, backendAt)
		c.reply(t, "data", ack, backendAt, clientAt)
	}
	w.expectRows(t, 2, 0)
	return c
}

// request and reply fail unless a packet gets to the other end, whatever the programs think of it.
func (c *conversation) request(t *testing.T, name string, flags byte, seq, acked uint32) {
	t.Helper()
	c.step(t, step{name: name, in: packet{from: c.client, to: c.vip, proto: c.proto, flags: flags, seq: seq, ack: acked},
		want: packet{from: c.end, to: c.pod, proto: c.proto, flags: flags, seq: seq, ack: acked}})
}

func (c *conversation) reply(t *testing.T, name string, flags byte, seq, acked uint32) {
	t.Helper()
	c.step(t, step{name: name, leaving: c.local, in: packet{from: c.pod, to: c.end, proto: c.proto, flags: flags, seq: seq, ack: acked},
		want: packet{from: c.vip, to: c.client, proto: c.proto, flags: flags, seq: seq, ack: acked}})
}

// expect fails unless the directions of the flow are in these states.
func (c *conversation) expect(t *testing.T, name string, client, backend bpf.MapsCtState) {
	t.Helper()
	request, ok := c.row(t, c.client, c.vip, c.proto)
	reply, also := c.row(t, c.pod, c.end, c.proto)
	if !ok || !also || request.State != uint8(client) || reply.State != uint8(backend) {
		t.Fatalf("%s: the client's row %v is in state %d, the backend's %v in %d; want %d and %d", name, ok, request.State, also, reply.State,
			client, backend)
	}
}

const (
	isOpen    = bpf.MapsCtStateCT_OPEN
	isClosing = bpf.MapsCtStateCT_CLOSING
	isReset   = bpf.MapsCtStateCT_RESET
)

// conversations runs a story over TCP with backends on this node and on another one.
func conversations(t *testing.T, story func(t *testing.T, c *conversation)) {
	t.Helper()
	conversationsOf(t, tcp, story)
}

func conversationsOf(t *testing.T, proto byte, story func(t *testing.T, c *conversation)) {
	t.Helper()
	for _, local := range []bool{false, true} {
		each(t, func(t *testing.T, w *bareNode, f family) {
			if local && w.out == "" {
				return // XDP sees nothing that leaves
			}
			story(t, w.converse(t, f, local, proto))
		})
	}
}

// guesses are what somebody sends who knows addresses and ports but no sequence number.
func guesses(at uint32) []uint32 {
	return []uint32{0, at + 1<<20, at - 1<<18, at + 1<<31, at ^ 1<<24, at + 1<<28}
}

// Who does not see a connection cannot end it: neither a RST nor a FIN counts whose sequence number
// is a guess, from either side. Both are passed on, for the receiver to judge.
func TestForgedEnds(t *testing.T) {
	conversations(t, func(t *testing.T, c *conversation) {
		for _, flags := range []byte{rst, rst | ack, fin, fin | ack, fin | rst} {
			for _, seq := range guesses(clientAt) {
				c.request(t, "forged by the client", flags, seq, seq)
				c.expect(t, "forged by the client", isOpen, isOpen)
			}
			for _, seq := range guesses(backendAt) {
				c.reply(t, "forged by the backend", flags, seq, seq)
				c.expect(t, "forged by the backend", isOpen, isOpen)
			}
		}
		limits := &maps.FlowLimits{maps.ClassTCP: {maps.PhaseOpen: 1000}}
		if n := c.doom(t, maps.DoomIdle, limits); n != 0 {
			t.Errorf("%d flows were forgotten", n)
		}
		verdict, _ := c.run(t, c.in, packet{from: c.client, to: c.vip, proto: c.proto, flags: syn, seq: 5}.bytes())
		if verdict != "pass" {
			t.Fatalf("a SYN: %s", verdict)
		}
		c.expectRows(t, 2, 0)
		c.expect(t, "after a forged SYN", isOpen, isOpen)
	})
}

// A forged packet that is no end does not bring a direction to where a forged end is expected.
func TestForgedWay(t *testing.T) {
	conversations(t, func(t *testing.T, c *conversation) {
		for _, seq := range guesses(clientAt) {
			c.request(t, "forged", ack, seq, seq)
			c.request(t, "forged reset", rst, seq, seq)
			c.expect(t, "by the client", isOpen, isOpen)
		}
		for _, seq := range guesses(backendAt) {
			c.reply(t, "forged", ack, seq, seq)
			c.reply(t, "forged reset", rst, seq, seq)
			c.expect(t, "by the backend", isOpen, isOpen)
		}
	})
}

// The ends' own RST and FIN count wherever they may be: behind the last segment, even if a merged
// one of half a megabyte was the last; at what the other end acknowledges; and after megabytes that
// were lost before they came here. A RST that was not heeded is taken back.
func TestRealEnds(t *testing.T) {
	conversations(t, func(t *testing.T, c *conversation) {
		for _, at := range []uint32{clientAt, clientAt + 1400, clientAt + 1<<16, clientAt + 1<<19, clientAt - 1000} {
			c.request(t, "reset", rst, at, 0)
			c.expect(t, "the client's reset", isReset, isOpen)
			c.request(t, "more", ack, clientAt, backendAt)
			c.expect(t, "the reset was not heeded", isOpen, isOpen)
		}
		far := uint32(backendAt)
		for range 5000 { // four times around
			far += 900_000
			c.reply(t, "data", ack, far, clientAt)
			c.request(t, "acknowledgment", ack, clientAt, far)
		}
		c.reply(t, "sent again", ack, far-3_000_000, clientAt)
		c.reply(t, "the backend's end", fin|ack, far+1000, clientAt)
		c.expect(t, "the backend's end", isOpen, isClosing)
		c.request(t, "the client's end", fin|ack, clientAt, far+1001)
		c.expect(t, "both ends", isClosing, isClosing)
		c.reply(t, "the backend's reset", rst, far+1001, 0)
		c.expect(t, "the backend's reset", isClosing, isReset)
	})
}

// Both ends may lose a connection without a word, and the client may begin another one from the same
// port. It goes on where its SYN and the server's answer are once the client goes on from there, and its
// end counts.
func TestBegunAnew(t *testing.T) {
	conversations(t, func(t *testing.T, c *conversation) {
		const newClient, newBackend = 0x8000ffff, 0x40000001 // the SYN's number ends with its half
		c.request(t, "SYN", syn, newClient, 0)
		c.reply(t, "SYN-ACK", syn|ack, newBackend-1, newClient+1)
		c.request(t, "acknowledgment", ack, newClient+1, newBackend)
		for _, flags := range []byte{rst, fin | ack} {
			c.request(t, "of the old connection", flags, clientAt, backendAt)
			c.reply(t, "of the old connection", flags, backendAt, clientAt)
		}
		c.expect(t, "after old ends", isOpen, isOpen)
		c.request(t, "FIN", fin|ack, newClient+1, newBackend)
		c.reply(t, "FIN", fin|ack, newBackend, newClient+2)
		c.expect(t, "after both ends", isClosing, isClosing)
	})
	conversationsOf(t, sctp, func(t *testing.T, c *conversation) {
		const newClient, newBackend = 0x80000001, 0x40000001
		c.request(t, "INIT", syn, newClient, 0)
		c.reply(t, "INIT ACK", syn|ack, newBackend, newClient)
		c.request(t, "COOKIE ECHO", ack, 0, newBackend)
		c.request(t, "ABORT of the old association", rst, 0, backendAt)
		c.reply(t, "ABORT of the old association", rst, 0, clientAt-1)
		c.expect(t, "after old ends", isOpen, isOpen)
		c.request(t, "SHUTDOWN", fin, 0, newBackend)
		c.reply(t, "SHUTDOWN ACK", fin, 0, newClient)
		c.expect(t, "after both ends", isClosing, isClosing)
	})
}

// Whoever forges a SYN where a connection goes on moves nothing: not by the SYN, nor with a forged answer
// that acknowledges no SYN, nor with what the ends say to the SYN. Only the client gets a server's answer.
func TestForgedSYN(t *testing.T) {
	conversations(t, func(t *testing.T, c *conversation) {
		const forged, answer = 0x80000000, 0x40000000
		ends := func(name string) {
			for _, at := range guesses(answer) {
				c.request(t, name, fin|ack, forged+1, at+5<<20)
			}
			for _, flags := range []byte{rst, rst | ack, fin} {
				c.request(t, name, flags, forged+1, 0)
				c.reply(t, name, flags, answer+1, 0)
			}
			c.expect(t, name, isOpen, isOpen)
		}
		c.reply(t, "a forged answer", syn|ack, answer, forged+1)
		ends("no SYN")
		c.request(t, "SYN", syn, forged, 0)
		ends("a SYN")
		c.reply(t, "an answer to another SYN", syn|ack, answer, forged+5<<16)
		ends("an answer to another SYN")
		c.reply(t, "the server has the connection", ack, backendAt, clientAt)
		ends("a server that has the connection")
		c.reply(t, "the server has lost the connection", syn|ack, answer, forged+1)
		ends("a server that has lost the connection")
		c.request(t, "FIN", fin|ack, clientAt, backendAt)
		c.reply(t, "FIN", fin|ack, backendAt, clientAt+1)
		c.expect(t, "after both ends", isClosing, isClosing)
	})
}

// A server of SCTP answers an INIT even where it has the association, and goes on with that unless its
// answer is followed. So whoever forges an INIT must not move the tags by which real ends are told.
func TestForgedInit(t *testing.T) {
	conversationsOf(t, sctp, func(t *testing.T, c *conversation) {
		const forgedTag, offeredTag = 0x66660000, 0x55550000
		c.request(t, "forged INIT", syn, forgedTag, 0)
		c.reply(t, "INIT ACK", syn|ack, offeredTag, forgedTag)
		c.reply(t, "forged ABORT of the backend", rst, 0, forgedTag)
		for _, guess := range []uint32{0, forgedTag, offeredTag + 1<<16, offeredTag ^ 1<<31} {
			c.request(t, "guessed COOKIE ECHO", ack, 0, guess)
			c.request(t, "guessed ABORT", rst, 0, guess)
		}
		c.expect(t, "after the forged", isOpen, isOpen)
		c.request(t, "SHUTDOWN", fin, 0, backendAt)
		c.expect(t, "the client's end", isClosing, isOpen)
		c.reply(t, "SHUTDOWN ACK", fin, 0, clientAt-1)
		c.expect(t, "both ends", isClosing, isClosing)
	})
}
