package sockmap

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// MaxRules is how many rules a node can have: each is a bit.
const MaxRules = 64

// Place is where an end of a connection is: a network namespace, by its cookie, and for whom accepts also a port; 0 for any.
type Place struct {
	Netns uint64
	Port  uint16
}

// Rules are the rules, a bit each, that let connections from or to a place go past TCP. A connection may if some rule lets both of its ends.
type Rules struct {
	From uint64 // of no meaning with a port
	To   uint64
}

// SetRules says who may take part. Connections that begin from now on are held to it, and others that are no more to take part go by TCP.
func (s *Sockmap) SetRules(want map[Place]Rules) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, err := s.now.rules()
	if err != nil {
		return err
	}
	for place, rules := range want {
		if have[place] == rules {
			continue
		}
		key := bpf.SockmapShortKey{Netns: place.Netns, Port: uint32(place.Port)}
		if err := s.now.maps[rulesMap].Put(key, bpf.SockmapShortRules{From: rules.From, To: rules.To}); err != nil {
			return fmt.Errorf("set rules of namespace %d: %w", place.Netns, err)
		}
	}
	for place := range have {
		if _, ok := want[place]; ok {
			continue
		}
		key := bpf.SockmapShortKey{Netns: place.Netns, Port: uint32(place.Port)}
		if err := s.now.maps[rulesMap].Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove rules of namespace %d: %w", place.Netns, err)
		}
	}
	s.rules = want
	s.note()
	return nil
}

// rules returns what the map says.
func (g *generation) rules() (map[Place]Rules, error) {
	have := map[Place]Rules{}
	var key bpf.SockmapShortKey
	var row bpf.SockmapShortRules
	each := g.maps[rulesMap].Iterate()
	for each.Next(&key, &row) {
		have[Place{key.Netns, uint16(key.Port)}] = Rules{row.From, row.To}
	}
	if err := each.Err(); err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return have, nil
}
