package sockmap

import (
	"fmt"
	"net/netip"
	"strings"
	"unsafe"

	"fairlead.io/fairlead/pkg/bpf"
)

// Pair is a connection whose ends both may take part.
type Pair struct {
	Client, Server           netip.AddrPort // each end's own address
	ClientNetns, ServerNetns uint64
	State                    string
	Exclusion                string    // why it uses TCP for good; empty if it does not
	Inside                   int       // how many of its sockets are in the map
	Turns                    uint32    // in the map: messages that have bypassed TCP since
	Redirected, Passed       [2]uint64 // bytes sent by the client and by the server
}

// states are the names of enum pair_state.
var states = []string{"watched", "chosen", "accelerated", "leaving", "excluded"}

// exclusions are the names of enum exclusion.
var exclusions = []string{"none", "splice", "way", "flags", "blocking", "lowat", "ulp", "zerocopy", "urgent", "refused", "stream", "rules", "program", "edge", "control"}

func word(words []string, n uint32) string {
	if int(n) < len(words) {
		return words[n]
	}
	return fmt.Sprintf("unknown-%d", n)
}

// Pairs returns all connections that the programs know, in no particular order.
func (s *Sockmap) Pairs() ([]Pair, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now.pairs()
}

func (g *generation) pairs() (list []Pair, err error) {
	var key uint64
	var row bpf.SockmapPair
	each := g.maps[pairsMap].Iterate()
	for each.Next(&key, &row) {
		list = append(list, pairOf(row))
	}
	if err := each.Err(); err != nil {
		return nil, fmt.Errorf("list connections: %w", err)
	}
	return list, nil
}

func pairOf(row bpf.SockmapPair) Pair {
	p := Pair{
		Client: addrPort(row.Addr[0].Word, row.Port[0]), Server: addrPort(row.Addr[1].Word, row.Port[1]),
		ClientNetns: row.Netns[0], ServerNetns: row.Netns[1], State: word(states, row.State), Turns: row.Turns,
		Inside: strings.Count(fmt.Sprintf("%02b", row.Inside&3), "1"), Redirected: row.Redirected, Passed: row.Passed,
	}
	if row.Exclusion != 0 {
		p.Exclusion = word(exclusions, row.Exclusion)
	}
	return p
}

func addrPort(words [4]uint32, port uint32) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&words))).Unmap(), uint16(port))
}
