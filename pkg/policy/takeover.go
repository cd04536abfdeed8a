package policy

// takeOver takes the views, rows and decisions of those scopes over that are as they were. An edit is about
// one namespace, and all others would come to what they have. The classes of addresses have to be the same.
func (c *Compiler) takeOver(before *Tables, previous map[string]*scope) {
	scopes, subjects := map[uint32]bool{}, map[uint32]bool{}
	for namespace, s := range c.scopes {
		if was := previous[namespace]; was == nil || !s.same(was) {
			continue
		}
		s.taken, s.used = true, previous[namespace].used
		s.reduced.keep()
		scopes[s.number] = true
		for _, subject := range s.subjects {
			subjects[subject.number] = true
		}
	}
	for view, reduced := range before.Views {
		if scopes[view.Scope] {
			c.tables.Views[view] = reduced
		}
	}
	known := map[uint32]bool{}
	for row, number := range before.Rows {
		if !subjects[row.Subject] {
			continue
		}
		c.tables.Rows[row] = number
		if !known[number] {
			known[number] = true
			c.decision(before.Decisions[number]) // which has the same number again
		}
	}
}

// same reports whether two scopes tell the same apart and have the same subjects, so that they have the same
// views and rows. That of what is refused depends on others.
func (s *scope) same(was *scope) bool {
	if s.text != was.text || s.over != "" || was.over != "" || len(s.subjects) != len(was.subjects) {
		return false
	}
	for key, subject := range s.subjects {
		other := was.subjects[key]
		if other == nil || subject.unknown || other.unknown || other.refused {
			return false
		}
	}
	return true
}

// exceeds reports whether something has a quota exceeded, or the node has. Who has to pay for decisions that
// several scopes have in common is only known if all of them are compiled.
func (c *Compiler) exceeds() bool {
	_, over := c.crowded()
	return over != "" || len(c.tables.Problems) > 0
}
