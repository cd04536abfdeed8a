package conntrack

import (
	"fmt"

	"fairlead.io/fairlead/pkg/maps"
)

// kept are the datagrams that the stack translates by a record of its own, and programs only pass: those of a proxy that served the node
// before. A row of these is no longer right once the record is gone, which nobody tells: what comes then would be left to the stack, where nobody
// may be that knows what to do with it. And it does not say who the backend is.
type kept struct {
	ask func(maps.Flow) (maps.Peer, bool, error) // Config.Kept
	was map[maps.Flow]struct{}                   // had a record in the last walk
	is  map[maps.Flow]struct{}                   // has one in this
	err error
}

// passes reports whether a request is passed as it comes.
func passes(key *maps.Flow, row *maps.FlowRow) bool {
	return row.Dport == key.Dport && row.Sport == key.Sport && row.Daddr == key.Daddr && row.Saddr == key.Saddr
}

func (k *kept) begin() { k.was, k.is, k.err = k.is, map[maps.Flow]struct{}{}, nil }

// look returns what the client of a request dialled and the backend that it has by the stack's record; over if there is none any more. What never had
// one is a flow like others, to a backend that has the frontend's own address.
func (k *kept) look(key *maps.Flow) (peer maps.Peer, is, over bool) {
	if k.ask == nil {
		return peer, false, false
	}
	_, was := k.was[*key]
	peer, is, err := k.ask(*key)
	if err != nil {
		k.err = fmt.Errorf("find what the stack translates: %w", err)
		is = was
	}
	if is {
		k.is[*key] = struct{}{}
	}
	return peer, is && err == nil, was && !is
}
