package lb

import (
	"net/netip"
	"testing"
)

// A client chooses its ports so that all its connections would reach one of four backends. Where the
// nodes have a secret that it does not know, they reach all four alike, whatever it takes for the
// secret. Where they have none, it succeeds.
func TestBackendIsNotChosen(t *testing.T) {
	const backends = 4
	reached := func(guess, is string) (counts [backends]int) {
		attacker, node := NewHashKeys(guess), NewHashKeys(is)
		for _, addr := range []string{"203.0.113.7", "2001:db8::7"} {
			for port := range uint16(8000) {
				client := netip.AddrPortFrom(netip.MustParseAddr(addr), 1024+port)
				if attacker.Flow(client, 443)%backends == 0 {
					counts[node.Flow(client, 443)%backends]++
				}
			}
		}
		return counts
	}
	if counts := reached("", ""); counts[0] < 3000 || counts[1]+counts[2]+counts[3] != 0 {
		t.Errorf("without a secret it reaches %v, want only the first", counts)
	}
	for _, guess := range []string{"", "0123456789abcdee"} {
		for backend, n := range reached(guess, "0123456789abcdef") {
			if n < 850 || n > 1150 { // of some 4000
				t.Errorf("with the guess %q backend %d is reached %d times, want some 1000", guess, backend, n)
			}
		}
	}
}
