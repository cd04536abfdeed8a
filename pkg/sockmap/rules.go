package sockmap

import (
	"cmp"
	"errors"
	"fmt"
	"maps"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// MaxRules is how many rules a node can have: each is a bit, and one is reserved for the agent.
const MaxRules = 63

// Endpoint is one end of a connection: a network namespace, by its cookie, and for a server also its
// port; 0 for any.
type Endpoint struct {
	Netns uint64
	Port  uint16
}

// Rules are bits, one for each rule that admits connections from or to a place. A connection may
// bypass TCP if its ends have a rule in common.
type Rules struct {
	From uint64 // unused if the place has a port
	To   uint64
	Pod  string // whose place it is, for people
}

// SetRules sets which places may take part. Connections that no rule admits any more go back to
// TCP.
func (s *Sockmap) SetRules(want map[Endpoint]Rules) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = want
	return s.putRules()
}

// keepRules removes the rules of all namespaces but those to keep.
func (s *Sockmap) keepRules(keep func(netns uint64) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := maps.Clone(s.rules)
	maps.DeleteFunc(kept, func(place Endpoint, _ Rules) bool { return !keep(place.Netns) })
	s.rules = kept
	return s.putRules()
}

// exclude makes the connections use TCP that no rule admits any more. Without it they do with the next
// sweep. Their sockets leave the map later, once what waits there has been read.
func (s *Sockmap) exclude() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.now.sweep()
	s.note()
	return err
}

// setOwn sets the rules for the agent's own connections, in addition.
func (s *Sockmap) setOwn(own map[Endpoint]Rules) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = own
	return s.putRules()
}

// adoptRules keeps the rules of the previous agent until others are set.
func (s *Sockmap) adoptRules() error {
	have, err := s.now.rules()
	if err != nil {
		return err
	}
	for place, rules := range have {
		rules.From &^= checkRule // left by an interrupted check
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
		want = map[Endpoint]Rules{}
	}
	for place, rules := range s.own {
		also := want[place]
		want[place] = Rules{From: also.From | rules.From, To: also.To | rules.To, Pod: cmp.Or(also.Pod, rules.Pod)}
	}
	// Rows are written one after another. First each row loses the rules that it should not keep,
	// so no intermediate state admits a connection that neither the old nor the new rules admit.
	lost := false
	defer func() {
		if lost { // even if what follows fails: the next time nothing is lost any more
			s.note()
		}
	}()
	for place, was := range have {
		is := want[place]
		kept := Rules{was.From & is.From, was.To & is.To, was.Pod}
		lost = lost || kept != was
		if err := s.now.setRules(place, was, kept); err != nil {
			return err
		}
		have[place] = kept
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
	return nil
}

// setRules changes one row from was to is.
func (g *generation) setRules(place Endpoint, was, is Rules) error {
	is = rulesOf(rowOf(is)) // with the name truncated to the row's size
	if was == is {
		return nil
	}
	key := bpf.SockmapShortKey{Netns: place.Netns, Port: uint32(place.Port)}
	if err := g.maps[rulesMap].Put(key, rowOf(is)); err != nil {
		return fmt.Errorf("set rules of namespace %d: %w", place.Netns, err)
	}
	return nil
}

// rules returns the rules in the map.
func (g *generation) rules() (map[Endpoint]Rules, error) {
	have := map[Endpoint]Rules{}
	var key bpf.SockmapShortKey
	var row bpf.SockmapShortRules
	each := g.maps[rulesMap].Iterate()
	for each.Next(&key, &row) {
		have[Endpoint{key.Netns, uint16(key.Port)}] = rulesOf(row)
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
