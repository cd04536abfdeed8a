package policy

import (
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// rule is a rule for one subject.
type rule struct {
	number  uint32
	tier    model.Tier
	action  model.Action
	anyPort bool
	spans   []span
	named   []uint32 // atoms of the ports that destinations have names for
}

// span is a range of keys, without its end.
type span struct{ from, to uint32 }

// rules are those for one subject in one direction, in the order in which they decide.
type rules struct {
	list   []rule
	always []int            // those for any peer
	of     map[uint32][]int // those for the peers of an atom
	// isolated is the number of the rule that ends the tier of NetworkPolicies: it denies what none
	// of them accepts. It is 0 if none isolates the subject.
	isolated uint32
}

// matching returns the rules that match a peer, in order.
func (r *rules) matching(peer vector) []int {
	out := slices.Clone(r.always)
	for _, e := range peer {
		out = append(out, r.of[atomOf(e)]...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// decide returns the verdicts for a peer, and how many spans of ports it took to find them.
func (r *rules) decide(peer vector) (runs []Run, work int) {
	matching := r.matching(peer)
	spans := make([][]span, len(matching))
	for i, at := range matching {
		spans[i] = r.list[at].ports(peer)
		work += len(spans[i])
	}
	p := newPainter(spans)
	for tier := model.TierAdmin; tier <= model.TierBaseline; tier++ {
		p.reopen()
		for i, at := range matching {
			if rule := &r.list[at]; rule.tier == tier {
				for _, s := range spans[i] {
					p.paint(s, rule)
				}
			}
		}
		if tier == model.TierNetworkPolicy && r.isolated != 0 {
			p.paint(span{0, endKey}, &rule{number: r.isolated, action: model.Deny})
		}
	}
	return p.runs(), work + 1
}

// ports returns what ports a rule matches if a peer has this vector.
func (r *rule) ports(peer vector) []span {
	if r.anyPort {
		return []span{{0, endKey}}
	}
	if len(r.named) == 0 {
		return r.spans
	}
	out := slices.Clone(r.spans)
	for _, e := range peer {
		if slices.Contains(r.named, atomOf(e)) {
			key := uint32(e & (1<<portBits - 1))
			out = append(out, span{key, key + 1})
		}
	}
	return out
}

// painter gives each elementary interval of ports the first verdict that comes.
type painter struct {
	from    []uint32 // where the intervals begin
	open    []int    // leads to the next interval, or itself, that rules still decide about
	decided []bool
	verdict []Run
}

func newPainter(spans [][]span) *painter {
	from := []uint32{otherKey, tcpKey, udpKey, sctpKey}
	for _, list := range spans {
		for _, s := range list {
			from = append(from, s.from, s.to)
		}
	}
	slices.Sort(from)
	from = slices.Compact(from)
	for from[len(from)-1] >= endKey {
		from = from[:len(from)-1]
	}
	return &painter{from: from, open: make([]int, len(from)+1), decided: make([]bool, len(from)), verdict: make([]Run, len(from))}
}

// reopen lets a tier decide about what those before it did not.
func (p *painter) reopen() {
	for i := range p.open {
		p.open[i] = i
		if i < len(p.decided) && p.decided[i] {
			p.open[i] = i + 1
		}
	}
}

// next returns the first open interval from i on.
func (p *painter) next(i int) int {
	end := i
	for p.open[end] != end {
		end = p.open[end]
	}
	for p.open[i] != end {
		i, p.open[i] = p.open[i], end
	}
	return end
}

func (p *painter) paint(s span, by *rule) {
	first, _ := slices.BinarySearch(p.from, s.from)
	for i := p.next(first); i < len(p.from) && p.from[i] < s.to; i = p.next(i + 1) {
		p.open[i] = i + 1
		if by.action != model.Pass {
			p.decided[i] = true
			p.verdict[i] = Run{Accept: by.action == model.Accept, Rule: by.number}
		}
	}
}

// runs returns the verdicts. What nothing decides is accepted by no rule.
func (p *painter) runs() []Run {
	var out []Run
	for i, key := range p.from {
		verdict := p.verdict[i]
		if !p.decided[i] {
			verdict = Run{Accept: true}
		}
		if n := len(out); n > 0 && out[n-1].Accept == verdict.Accept && out[n-1].Rule == verdict.Rule {
			continue
		}
		verdict.Key = key
		out = append(out, verdict)
	}
	return slices.Clip(out)
}

// find returns the run that a key is in.
func find(runs []Run, key uint32) Run {
	at, found := slices.BinarySearchFunc(runs, key, func(r Run, key uint32) int { return int(r.Key) - int(key) })
	if !found {
		at--
	}
	return runs[at]
}

// narrows reports whether something is accepted before and denied after.
func narrows(before, after []Run) bool {
	for b, a := 0, 0; b < len(before) && a < len(after); {
		if before[b].Accept && !after[a].Accept {
			return true
		}
		endBefore, endAfter := end(before, b), end(after, a)
		if endBefore <= endAfter {
			b++
		}
		if endAfter <= endBefore {
			a++
		}
	}
	return false
}

func end(runs []Run, at int) uint32 {
	if at+1 < len(runs) {
		return runs[at+1].Key
	}
	return endKey
}
