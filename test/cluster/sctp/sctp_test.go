package sctp

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"fairlead.io/fairlead/test/rig"
)

func TestPacket(t *testing.T) {
	p := packet{source: 40000, destination: 80, tag: 7, chunk: cookieEchoChunk, value: []byte{1, 2, 3, 4, 5}}
	b := p.encode()
	if len(b)%4 != 0 {
		t.Errorf("%d bytes are not padded", len(b))
	}
	back, ok := decode(b)
	if !ok || back.source != p.source || back.destination != p.destination || back.tag != p.tag || back.chunk != p.chunk || !bytes.Equal(back.value, p.value) {
		t.Errorf("%+v came back as %+v, %v", p, back, ok)
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 1
		if got, ok := decode(bad); ok {
			t.Errorf("byte %d changed, and taken for %+v", i, got)
		}
		if got, ok := decode(b[:i]); ok {
			t.Errorf("cut to %d bytes, and taken for %+v", i, got)
		}
	}
}

func TestAnswer(t *testing.T) {
	ports := []uint16{80}
	for name, in := range map[string]packet{
		"another port":        {destination: 81, chunk: initChunk, value: beginning(5, nil)},
		"a short beginning":   {destination: 80, chunk: initChunk, value: []byte{0, 0, 0, 5}},
		"a forged cookie":     {destination: 80, chunk: cookieEchoChunk, tag: 1, value: []byte{0, 0, 0, 5}},
		"no part of a server": {destination: 80, chunk: cookieAckChunk},
	} {
		if out, ok := answer(in, ports); ok {
			t.Errorf("%s was answered: %+v", name, out)
		}
	}
}

// TestHandshake needs root, for raw sockets.
func TestHandshake(t *testing.T) {
	rig.Root(t)
	for network, host := range map[string]string{"ip4:132": "127.0.0.1", "ip6:132": "::1"} {
		conn, err := (&net.ListenConfig{}).ListenPacket(context.Background(), network, host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		go serveOn(conn, []uint16{8080})
		if err := Dial(net.JoinHostPort(host, "8080"), 5*time.Second); err != nil {
			t.Errorf("a port that is served: %v", err)
		}
		if err := Dial(net.JoinHostPort(host, "8081"), 50*time.Millisecond); err == nil || err.Error() != "TIMEOUT" {
			t.Errorf("a port that is not served: %v", err)
		}
	}
}
