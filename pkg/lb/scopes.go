package lb

import (
	"slices"

	"fairlead.io/fairlead/pkg/maps"
)

// tables fills in the backends and the slots of both scopes.
func (c *Compiler) tables(s *Service, outside bool) {
	for _, list := range c.scopes {
		if len(list) > c.limit {
			c.wanted.problem("TooManyBackends", "%s has %d backends; %d of them are used", s.ID, len(list), c.limit)
		}
	}
	if c.skips(Quota{Slots: c.least(s.Algorithm, outside)}) {
		return
	}
	s.union(c.scopes[maps.ScopeAll], c.scopes[maps.ScopeLocal])
	for scope, list := range c.scopes {
		if len(list) == 0 {
			continue
		}
		c.noteSmall(s, outside, list)
		s.Tables[scope] = tableWithin(s.Tables[scope], s.Algorithm, outside, list, c.limit)
		c.wanted.Uses.Slots += len(s.Tables[scope])
		if len(list) == len(s.Backends) {
			continue // positions in the scope are positions in Backends
		}
		c.positions = c.positions[:0]
		for _, w := range list {
			at, _ := slices.BinarySearchFunc(s.Backends, w.Backend, compareBackends)
			c.positions = append(c.positions, uint32(at))
		}
		for i, at := range s.Tables[scope] {
			s.Tables[scope][i] = c.positions[at]
		}
	}
}

// union sets the backends to those of two scopes, which are both sorted.
func (s *Service) union(a, b []Weighted) {
	for len(a) > 0 || len(b) > 0 {
		order := -1
		switch {
		case len(a) == 0:
			order = 1
		case len(b) > 0:
			order = compareBackends(a[0].Backend, b[0].Backend)
		}
		if order <= 0 {
			s.Backends = append(s.Backends, a[0].Backend)
			a = a[1:]
		} else {
			s.Backends = append(s.Backends, b[0].Backend)
		}
		if order >= 0 {
			b = b[1:]
		}
	}
}

// least returns how many slots the tables have if they are Maglev's, which cost most, or else 0.
func (c *Compiler) least(algorithm Algorithm, outside bool) (slots int) {
	if algorithm != Maglev || !outside {
		return 0
	}
	for _, list := range c.scopes {
		if count := tableWeigh(list).count; count > 1 {
			slots += int(maglevWithin(count, c.limit))
		}
	}
	return slots
}

// noteSmall says once if a Maglev table will be smaller than it should be.
func (c *Compiler) noteSmall(s *Service, outside bool, list []Weighted) {
	if c.wanted.shrunk || s.Algorithm != Maglev || !outside {
		return
	}
	weights := tableWeigh(list)
	if want := int(maglevSize(weights.count)); weights.count > 1 && want > c.limit {
		c.wanted.shrunk = true
		c.wanted.problem("SmallerTable", "the Maglev tables have at most %d slots instead of %d, so backends get less even shares: a Service can have "+
			"%d slots for all its ports together, use more Services", c.limit, want, c.facts.Quota.Slots)
	}
}
