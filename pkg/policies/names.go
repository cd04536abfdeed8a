package policies

import (
	"maps"
	"slices"

	"fairlead.io/fairlead/pkg/policy"
)

// RuleName says what a number means by which the programs name a rule. Policy is empty if no policy
// gave it.
type RuleName struct {
	Number    uint32 `json:"number"`
	Policy    string `json:"policy,omitempty"` // "networkpolicy shop/web"
	Direction string `json:"direction,omitempty"`
	Rule      int    `json:"rule,omitempty"` // its position, from 1; 0 if no rule of the policy gave the verdict
	Label     string `json:"label,omitempty"`
	Action    string `json:"action,omitempty"`
	Words     string `json:"words"`
}

func nameOf(number uint32, r policy.Rule) RuleName {
	name := RuleName{Number: number, Policy: r.Object(), Rule: r.Position(), Label: r.Label, Words: r.String()}
	if name.Policy != "" {
		name.Direction, name.Action = r.Direction.String(), r.Action.String()
	}
	return name
}

// names are the rules by number, as of the last two changes of them: programs may have just judged by a
// rule that is gone.
type names struct{ now, before map[uint32]policy.Rule }

// follow notes what a change did to the rules.
func (n *names) follow(change *policy.Change, t *policy.Tables) {
	if n.now == nil || len(change.Rules) > 0 {
		n.before, n.now = n.now, maps.Clone(t.Rules)
	}
}

func (n *names) find(number uint32) (policy.Rule, bool) {
	if rule, found := n.now[number]; found {
		return rule, true
	}
	rule, found := n.before[number]
	return rule, found
}

// Names returns what the numbers of all rules mean that are in force, in order.
func (c *Controller) Names() []RuleName {
	c.answers.Lock()
	defer c.answers.Unlock()
	list := make([]RuleName, 0, len(c.names.now))
	for _, number := range slices.Sorted(maps.Keys(c.names.now)) {
		list = append(list, nameOf(number, c.names.now[number]))
	}
	return list
}

// Rule returns what the number of a rule means by which programs deny packets. It is not found before there
// is a change in force: until then numbers mean what they meant to the agent before.
func (c *Controller) Rule(number uint32) (policy.Rule, bool) {
	c.answers.Lock()
	defer c.answers.Unlock()
	if !c.loaded {
		return policy.Rule{}, false
	}
	return c.names.find(number)
}

// Name returns what the number of a rule means in words, or nothing if it is not known.
func (c *Controller) Name(number uint32) string {
	c.answers.Lock()
	defer c.answers.Unlock()
	rule, found := c.names.find(number)
	if !found {
		return ""
	}
	return rule.String()
}
