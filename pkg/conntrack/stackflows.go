package conntrack

import (
	"fmt"

	"fairlead.io/fairlead/pkg/maps"
)

// stackFlows tracks the UDP flows that the programs pass unchanged because the stack translates them by a
// conntrack entry of its own, left by the proxy that served the node before. Once that entry is
// gone, which nothing announces, such a row is wrong: it would hand the packets to a stack that no
// longer translates them. Nor does the row say which backend they go to.
type stackFlows struct {
	ask func(maps.Flow) (maps.Origin, bool, error) // Config.StackEntry
	was map[maps.Flow]struct{}                     // had an entry in the last walk
	is  map[maps.Flow]struct{}                     // have one in this walk
	err error
}

// passes reports whether a row leaves its request unchanged.
func passes(key *maps.Flow, row *maps.FlowRow) bool {
	return row.Dport == key.Dport && row.Sport == key.Sport && row.Daddr == key.Daddr && row.Saddr == key.Saddr
}

func (k *stackFlows) begin() { k.was, k.is, k.err = k.is, map[maps.Flow]struct{}{}, nil }

// entry returns what the client of a request dialed and its backend, according to the stack's
// entry; over is true if the entry existed in the last walk and is gone. A request that never had
// an entry is an ordinary flow, whose backend has the frontend's own address.
func (k *stackFlows) entry(key *maps.Flow) (origin maps.Origin, is, over bool) {
	if k.ask == nil {
		return origin, false, false
	}
	_, was := k.was[*key]
	origin, is, err := k.ask(*key)
	if err != nil {
		k.err = fmt.Errorf("look up what the stack translates: %w", err)
		is = was
	}
	if is {
		k.is[*key] = struct{}{}
	}
	return origin, is && err == nil, was && !is
}
