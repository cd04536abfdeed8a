package policy

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// decide adds the decisions of the subjects of a scope about a reduced class.
func (c *Compiler) decide(s *scope, reduced uint32, peer vector) {
	for _, key := range slices.Sorted(maps.Keys(s.subjects)) {
		subject := s.subjects[key]
		for direction, rules := range subject.rules {
			if rules == nil || s.over != "" && subject.own {
				continue
			}
			runs, work := rules.decide(peer)
			used := Quota{Work: work}
			number, fresh := c.decision(runs)
			if fresh {
				used.Runs = len(runs)
			}
			row := Row{subject.number, model.Direction(direction), 0}
			if rest, found := c.tables.Rows[row]; !found || rest != number {
				row.Reduced = reduced
				c.tables.Rows[row] = number
				used.Rows = 1
			}
			if subject.own {
				s.charge(c.quota, used)
			}
		}
	}
}

// decision returns the number of a decision, and whether it is new.
func (c *Compiler) decision(runs []Run) (number uint32, fresh bool) {
	text := make([]byte, 0, 9*len(runs))
	for _, r := range runs {
		text = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(text, r.Key), r.Rule)
		if r.Accept {
			text = append(text, 1)
		} else {
			text = append(text, 0)
		}
	}
	number, _ = c.numbering.decisions.of(string(text))
	if _, found := c.tables.Decisions[number]; found {
		return number, false
	}
	c.tables.Decisions[number] = runs
	return number, true
}

// charge adds to what a scope uses.
func (s *scope) charge(quota, used Quota) {
	s.used.Rows += used.Rows
	s.used.Runs += used.Runs
	s.used.Work += used.Work
	switch {
	case s.used.Rows > quota.Rows:
		s.over = fmt.Sprintf("%d decisions", quota.Rows)
	case s.used.Runs > quota.Runs:
		s.over = fmt.Sprintf("%d runs of ports", quota.Runs)
	case s.used.Work > quota.Work:
		s.over = fmt.Sprintf("%d ports of rules to look at", quota.Work)
	}
}

// crowded reports whether all decisions together are more than a node may have, and which of the scopes that can be
// refused takes most of them.
func (c *Compiler) crowded() (most *scope, over string) {
	runs := 0
	for _, list := range c.tables.Decisions {
		runs += len(list)
	}
	switch {
	case runs > nodeRuns:
		over = fmt.Sprintf("a part of the node's %d runs of ports", nodeRuns)
	case len(c.tables.Rows) > nodeRows:
		over = fmt.Sprintf("a part of the node's %d decisions", nodeRows)
	default:
		return nil, ""
	}
	takes := func(s *scope) int {
		if runs > nodeRuns {
			return s.used.Runs
		}
		return s.used.Rows
	}
	for _, namespace := range slices.Sorted(maps.Keys(c.scopes)) {
		if s := c.scopes[namespace]; s.own && s.over == "" && takes(s) > 0 && (most == nil || takes(s) > takes(most)) {
			most = s
		}
	}
	return most, over
}

// refuse makes subjects deny everything whose rules cannot be followed.
func (c *Compiler) refuse() {
	c.refuseOver()
	for most, over := c.crowded(); most != nil; most, over = c.crowded() {
		most.over = over
		c.refuseOver()
	}
}

func (c *Compiler) refuseOver() {
	dropped := map[uint32]struct{}{}
	for _, namespace := range slices.Sorted(maps.Keys(c.scopes)) {
		s := c.scopes[namespace]
		for _, key := range slices.Sorted(maps.Keys(s.subjects)) {
			subject, why := s.subjects[key], OverQuota
			if subject.unknown {
				why = UnknownNamespace
			} else if s.over == "" || !subject.own {
				continue
			}
			if subject.refused {
				continue
			}
			subject.refused = true
			dropped[subject.number] = struct{}{}
			delete(c.tables.Subjects, subject.number)
			// Another number, since the rows of the other one mean something else.
			subject.number, _ = c.numbering.subjects.of(fmt.Sprintf("refused %d %s", why, s.text))
			c.tables.Subjects[subject.number] = s.number
			number, _ := c.decision([]Run{{Rule: c.number(Rule{Why: why, Policy: model.Name{Namespace: namespace}, Action: model.Deny})}})
			for direction := range model.Direction(model.Directions) {
				c.tables.Rows[Row{subject.number, direction, 0}] = number
			}
		}
		if s.over != "" {
			c.tables.Problems[namespace] = []model.Problem{{Reason: "PolicyQuotaExceeded", Message: fmt.Sprintf(
				"the pods that NetworkPolicies of namespace %s select are denied everything on this node, since the policies need more than %s: "+
					"select with fewer or larger sets, or merge ranges of ports", namespace, s.over)}}
		}
	}
	if len(dropped) > 0 {
		maps.DeleteFunc(c.tables.Rows, func(row Row, _ uint32) bool { _, is := dropped[row.Subject]; return is })
	}
	used := map[uint32]struct{}{}
	for _, number := range c.tables.Rows {
		used[number] = struct{}{}
	}
	maps.DeleteFunc(c.tables.Decisions, func(number uint32, _ []Run) bool { _, is := used[number]; return !is })
}
