package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Denial is how many packets of one direction a policy denied, or one of its rules.
type Denial struct {
	Namespace string // of the policy
	Policy    string // "networkpolicy shop/web"; empty if no policy gave the rule
	Direction string // "ingress" or "egress", as the pod sees it
	Packets   uint64
}

const (
	// maxDenying is how many policies are named. More of them are others.
	maxDenying = 32
	// maxPolicyLabel is how long the name of one may be. The longest that an API server takes have 331 bytes.
	maxPolicyLabel = 352
	// otherPolicies is what no policy is called: in the name of each there is a space.
	otherPolicies = "others"
)

// bounded adds up denials by policy and direction, and leaves few policies and plain names: both are up to
// tenants. Those with most are named, and first the one with most of each namespace, so that nobody can push
// out what others' policies deny.
func bounded(list []Denial) []Denial {
	type named struct {
		namespace, policy string
		packets           uint64 // of both directions
		turn              int    // its place in its namespace
	}
	policies, labels := map[string]*named{}, make([]string, len(list))
	for i := range list {
		d := &list[i]
		label := plain(d.Policy)
		if labels[i] = label; label == "" {
			continue
		}
		if policies[label] == nil {
			policies[label] = &named{namespace: d.Namespace, policy: label}
		}
		policies[label].packets += d.Packets
	}
	order := slices.SortedFunc(maps.Values(policies), func(a, b *named) int {
		return cmp.Or(cmp.Compare(b.packets, a.packets), cmp.Compare(a.policy, b.policy))
	})
	turns := map[string]int{}
	for _, p := range order {
		p.turn = turns[p.namespace]
		turns[p.namespace]++
	}
	slices.SortStableFunc(order, func(a, b *named) int { return cmp.Compare(a.turn, b.turn) })
	kept := map[string]string{"": ""}
	for _, p := range order[:min(len(order), maxDenying)] {
		kept[p.policy] = p.policy
	}
	type series struct{ policy, direction string }
	sums := map[series]uint64{}
	for i := range list {
		label, found := kept[labels[i]]
		if !found {
			label = otherPolicies
		}
		sums[series{label, list[i].Direction}] += list[i].Packets
	}
	out := make([]Denial, 0, len(sums))
	for at, packets := range sums {
		out = append(out, Denial{Policy: at.policy, Direction: at.direction, Packets: packets})
	}
	return out
}

// plain returns a text of printable ASCII of bounded length. What is not UTF-8 would end the scrape.
func plain(text string) string {
	if len(text) <= maxPolicyLabel && !strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }) {
		return text
	}
	quoted := strconv.QuoteToASCII(text)
	quoted = quoted[1 : len(quoted)-1]
	if len(quoted) > maxPolicyLabel {
		quoted = quoted[:maxPolicyLabel-3] + "..."
	}
	return quoted
}
