package sockmap

import (
	"cmp"
	"errors"
	"fmt"
	"maps"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// MaxRules is how many rules a node can have: each is a bit, and one is the agent's own.
const MaxRules = 63

// Place is where an end of a connection is: a network namespace, by its cookie, and for whom accepts also a port; 0 for any.
type Place struct {
	Netns uint64
	Port  uint16
}

// Rules are the rules, a bit each, that let connections from or to a place go past TCP. A connection may if some rule lets both of its ends.
type Rules struct {
	From uint64 // of no meaning with a port
	To   uint64
	Pod  string // whose place it is, for people
}

// SetRules says who may take part. Connections come to take part, or go back to TCP when no rule lets them any more.
func (s *Sockmap) SetRules(want map[Place]Rules) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = want
	return s.putRules()
}

// setOwn says who may take part besides.
func (s *Sockmap) setOwn(own map[Place]Rules) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = own
	return s.putRules()
}

// adoptRules has the rules of an agent before hold until others are set.
func (s *Sockmap) adoptRules() error {
	have, err := s.now.rules()
	if err != nil {
		return err
	}
	for place, rules := range have {
		rules.From &^= checkRule // of a check that was interrupted
		rules.To &^= checkRule
		if have[place] = rules; rules.From|rules.To == 0 {
			delete(have, place)
		}
	}
	s.rules = have
	return nil
}

func (s *Sockmap) putRules() error {
	have, err := s.now.rules()
	if err != nil {
		return err
	}
	want := maps.Clone(s.rules)
	if want == nil {
		want = map[Place]Rules{}
	}
	for place, rules := range s.own {
		also := want[place]
		want[place] = Rules{From: also.From | rules.From, To: also.To | rules.To, Pod: cmp.Or(also.Pod, rules.Pod)}
	}
	// Rows are written one after the other. First each loses what it is to have no more, so what is in between lets nobody whom neither would.
	for place, was := range have {
		is := want[place]
		if err := s.now.setRules(place, was, Rules{was.From & is.From, was.To & is.To, was.Pod}); err != nil {
			return err
		}
		have[place] = Rules{was.From & is.From, was.To & is.To, was.Pod}
	}
	for place, is := range want {
		if err := s.now.setRules(place, have[place], is); err != nil {
			return err
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
	s.note()
	return nil
}

// setRules makes a row say something else than it does.
func (g *generation) setRules(place Place, was, is Rules) error {
	is = rulesOf(rowOf(is)) // as far as there is room for the name
	if was == is {
		return nil
	}
	key := bpf.SockmapShortKey{Netns: place.Netns, Port: uint32(place.Port)}
	if err := g.maps[rulesMap].Put(key, rowOf(is)); err != nil {
		return fmt.Errorf("set rules of namespace %d: %w", place.Netns, err)
	}
	return nil
}

// rules returns what the map says.
func (g *generation) rules() (map[Place]Rules, error) {
	have := map[Place]Rules{}
	var key bpf.SockmapShortKey
	var row bpf.SockmapShortRules
	each := g.maps[rulesMap].Iterate()
	for each.Next(&key, &row) {
		have[Place{key.Netns, uint16(key.Port)}] = rulesOf(row)
	}
	if err := each.Err(); err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return have, nil
}

func rowOf(rules Rules) (row bpf.SockmapShortRules) {
	row.From, row.To = rules.From, rules.To
	for i, c := range []byte(rules.Pod[:min(len(rules.Pod), len(row.Pod.Text)-1)]) {
		row.Pod.Text[i] = int8(c)
	}
	return row
}

func rulesOf(row bpf.SockmapShortRules) Rules {
	var text []byte
	for _, c := range row.Pod.Text {
		if c == 0 {
			break
		}
		text = append(text, byte(c))
	}
	return Rules{row.From, row.To, string(text)}
}
