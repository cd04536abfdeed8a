package bpf

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
)

// A ping to an address of a service is answered where the row of the address says so; otherwise it
// is left to the stack.
func TestEcho(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.vip+":80", tcp, maps.LoadBalancer, f.pod+":8080", false)
		k := f.kinds()
		ask := message{from: host(f.client), to: host(f.vip), kind: k.echo, rest: 0x12340007, body: []byte("abcdefghijklmnopq"), ttl: 3, id: 77,
			macs: [2]byte{0, 1}}
		answer := ask
		answer.from, answer.to, answer.kind, answer.ttl, answer.macs = ask.to, ask.from, k.reply, 64, [2]byte{1, 0}
		untouched := func(name string, m message) {
			t.Helper()
			if verdict, out := w.run(t, w.in, m.bytes()); verdict != "pass" || !bytes.Equal(out, m.bytes()) {
				t.Errorf("%s: %s, %x", name, verdict, out)
			}
		}
		untouched("not asked for", ask)
		if err := w.tables.Svcs.Update(maps.PingKey(netip.MustParseAddr(host(f.vip))), maps.Svc{Service: w.services, Kind: maps.LoadBalancer}); err != nil {
			t.Fatal(err)
		}
		for range 200 { // there is no limit
			verdict, out := w.run(t, w.in, ask.bytes())
			if diff := cmp.Diff(answer.bytes(), out); verdict != "answer" || diff != "" {
				t.Fatalf("%s (-want +have):\n%s", verdict, diff)
			}
		}
		for name, change := range map[string]func(*message){
			"a reply":         func(m *message) { m.kind = k.reply },
			"another code":    func(m *message) { m.code = 1 },
			"another address": func(m *message) { m.to = host(f.node) },
			"from everybody":  func(m *message) { m.from = map[bool]string{true: "ff02::1", false: "224.0.0.1"}[f.any == "[::]"] },
			"a fragment":      func(m *message) { m.fragment = 0x2000 },
		} {
			m := ask
			change(&m)
			untouched(name, m)
		}
	})
}
