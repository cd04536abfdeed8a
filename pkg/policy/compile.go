package policy

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// compile makes new tables of all objects, except for the rows of pods. Numbers are the same as in
// the tables before wherever they mean the same. It reports whether it kept the classes of all
// addresses, because policies tell addresses apart by what they did before. Then it may take over what did
// not change at all.
func (c *Compiler) compile(takesOver bool) (kept bool) {
	before, previous := c.tables, c.scopes
	c.begin()
	c.group()
	namespaces := slices.Sorted(maps.Keys(c.scopes))
	for _, namespace := range namespaces {
		c.prepare(c.scopes[namespace])
	}
	c.findLabels()
	kept = !c.peersDue && c.numbering.atoms.same()
	if kept && takesOver {
		c.takeOver(before, previous)
	}
	for _, namespace := range namespaces {
		if s := c.scopes[namespace]; !s.taken {
			c.decide(s, 0, nil)
		}
	}
	if kept {
		c.keep(before)
	} else {
		c.classify()
	}
	c.refuse()
	c.finish()
	return kept
}

// keep takes the classes over. Only how scopes see them is new.
func (c *Compiler) keep(before *Tables) {
	t := c.tables
	t.Peers, t.Regions, t.lengths = before.Peers, before.Regions, before.lengths
	for _, number := range slices.Sorted(maps.Keys(before.classes)) {
		c.class(before.classes[number])
	}
	for _, s := range c.scopes { // of classes that come later it has none
		s.taken = false
	}
}

func (c *Compiler) begin() {
	for _, numbers := range c.numbering.list() {
		numbers.begin()
	}
	c.compilation++
	c.tables = NewTables()
	c.atoms = newAtoms(c.numbering.atoms)
	c.scopes, c.byAtom = map[string]*scope{}, map[uint32][]*scope{}
	if node := c.nodes[c.self]; node != nil {
		for _, addr := range node.Addrs {
			c.tables.Self[addr.Unmap()] = struct{}{}
		}
	}
}

func (c *Compiler) finish() {
	for _, numbers := range c.numbering.list() {
		numbers.finish()
	}
	for namespace := range c.numbering.reduced {
		if c.scopes[namespace] == nil {
			delete(c.numbering.reduced, namespace)
		}
	}
}

// prepare numbers the subjects and rules of a scope, and adds what they tell addresses apart by.
func (c *Compiler) prepare(s *scope) {
	if c.numbering.reduced[s.namespace] == nil {
		c.numbering.reduced[s.namespace] = newNumbers()
	}
	s.reduced = c.numbering.reduced[s.namespace]
	s.checkSelectors(c.quota)
	used := map[uint32]struct{}{}
	keys := slices.Sorted(maps.Keys(s.subjects))
	for _, key := range keys {
		subject := s.subjects[key]
		if subject.unknown || subject.own && s.over != "" {
			continue
		}
		for direction := range subject.rules {
			subject.rules[direction] = c.rulesOf(subject, model.Direction(direction), used)
		}
	}
	// The number stands for what the scope tells apart, since its views depend on that.
	text := []byte(s.namespace)
	for _, atom := range slices.Sorted(maps.Keys(used)) {
		c.byAtom[atom] = append(c.byAtom[atom], s)
		text = binary.BigEndian.AppendUint32(text, atom)
	}
	s.text = string(text)
	s.number, _ = c.numbering.scopes.of(s.text)
	for _, key := range keys {
		subject := s.subjects[key]
		subject.number, _ = c.numbering.subjects.of(s.text + "\x00" + key)
		c.tables.Subjects[subject.number] = s.number
	}
}

// rulesOf returns the rules for a subject, and adds the atoms that they use.
func (c *Compiler) rulesOf(s *subject, direction model.Direction, used map[uint32]struct{}) *rules {
	out := &rules{of: map[uint32][]int{}}
	for _, policy := range s.policies {
		for i := range policy.Rules[direction] {
			in := &policy.Rules[direction][i]
			at := len(out.list)
			out.list = append(out.list, c.ruleOf(s, policy, in, direction, used))
			if in.AnyPeer {
				out.always = append(out.always, at)
				continue
			}
			for j := range in.Peers {
				atom := c.atoms.add(&in.Peers[j])
				used[atom] = struct{}{}
				if list := out.of[atom]; len(list) == 0 || list[len(list)-1] != at {
					out.of[atom] = append(list, at)
				}
			}
		}
		if policy.Isolates[direction] && out.isolated == 0 {
			out.isolated = c.number(Rule{Why: Isolated, Policy: policy.Name, Tier: policy.Tier, Direction: direction, Number: -1, Action: model.Deny})
		}
	}
	return out
}

func (c *Compiler) ruleOf(s *subject, policy *model.NetworkPolicy, in *model.PolicyRule, direction model.Direction, used map[uint32]struct{}) rule {
	out := rule{
		number: c.number(Rule{ByRule, policy.Name, policy.Tier, direction, in.Number, in.Label, in.Action}),
		tier:   policy.Tier, action: in.Action, anyPort: in.AnyPort,
	}
	for _, ports := range in.Ports {
		first := protocolKey(ports.Protocol)
		out.spans = append(out.spans, span{first + uint32(ports.First), first + uint32(ports.Last) + 1})
	}
	for _, named := range in.Named {
		if direction == model.Egress {
			atom := c.atoms.addPort(named)
			used[atom] = struct{}{}
			out.named = append(out.named, atom)
			continue
		}
		for _, port := range s.ports {
			if key := keyOf(port.Protocol, port.Port); sameName(named, port) {
				out.spans = append(out.spans, span{key, key + 1})
			}
		}
	}
	return out
}

// number returns the number of a rule.
func (c *Compiler) number(r Rule) uint32 {
	type fields Rule // without the words of String, which do not tell tiers apart
	number, fresh := c.numbering.rules.of(fmt.Sprintf("%+v", fields(r)))
	if fresh {
		c.tables.Rules[number] = r
	}
	return number
}

// findLabels notes which labels of namespaces matter.
func (c *Compiler) findLabels() {
	c.labels = map[string]struct{}{}
	note := func(selector model.Selector) {
		for i := range selector {
			c.labels[selector[i].Label] = struct{}{}
		}
	}
	for _, policy := range c.policies {
		note(policy.Subject.Namespaces)
		if policy.Namespace == "" {
			c.labels[""] = struct{}{} // it matters also whether a namespace is known
		}
	}
	for _, broad := range c.atoms.broad {
		note(broad.namespaces)
		c.labels[""] = struct{}{}
	}
}

// classify gives every address that some atom knows its class.
func (c *Compiler) classify() {
	regions := map[netip.Prefix]uint32{}
	byPrefix := c.atoms.regions()
	for _, prefix := range slices.SortedFunc(maps.Keys(byPrefix), netip.Prefix.Compare) {
		regions[prefix] = c.class(byPrefix[prefix])
	}
	c.tables.SetRegions(regions)
	c.nodeOf = map[netip.Addr]vector{}
	if len(c.atoms.nodes) > 0 {
		for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
			elements := c.atoms.ofNode(c.nodes[name].Labels)
			for _, addr := range c.nodes[name].Addrs { // of which some may be another node's too
				c.nodeOf[addr.Unmap()] = append(c.nodeOf[addr.Unmap()], elements...)
			}
		}
	}
	// In the order of addresses, so that numbers are the same however the rows came to be.
	var addrs []netip.Addr
	for addr, elements := range c.nodeOf {
		if len(elements) > 0 {
			addrs = append(addrs, addr)
		}
	}
	if len(c.atoms.pods)+len(c.atoms.broad)+len(c.atoms.ports) > 0 {
		for at := range c.pods.rows {
			if row := &c.pods.rows[at]; row.shape != nil && len(c.elements(row.shape)) > 0 {
				addrs = row.addrs(addrs)
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	c.alike = map[alike]uint32{}
	for _, addr := range slices.Compact(addrs) {
		if class, own := c.classOf(addr); own {
			c.tables.Peers[addr] = class
		}
	}
	c.alike = nil // or it would keep shapes that no pod has any longer
}

// elements returns what policies see of a shape.
func (c *Compiler) elements(s *shape) vector {
	if s.compiled != c.compilation {
		namespace, known := c.namespaces[s.namespace()]
		s.elements, s.compiled = nil, c.compilation
		if elements := c.atoms.ofShape(s, namespace, known); len(elements) > 0 {
			s.elements = &elements
		}
	}
	if s.elements == nil {
		return nil
	}
	return *s.elements
}

// classOf returns the class of an address, and whether it differs from that of its region.
func (c *Compiler) classOf(addr netip.Addr) (class uint32, own bool) {
	node, shape := c.nodeOf[addr], c.pods.owner(addr)
	region := c.tables.region(addr, addr.BitLen())
	like := alike{shape, region}
	if class, known := c.alike[like]; known && len(node) == 0 {
		return class, true
	}
	elements := slices.Clone(node)
	if shape != nil {
		elements = append(elements, c.elements(shape)...)
	}
	if len(elements) == 0 {
		return region, false
	}
	elements = append(elements, c.tables.classes[region]...)
	slices.Sort(elements)
	class = c.class(slices.Compact(elements))
	if c.alike != nil && len(node) == 0 {
		c.alike[like] = class
	}
	return class, true
}

// alike are addresses in one region whose pods look the same, so that they have one class.
type alike struct {
	shape  *shape
	region uint32
}

// class returns the number of a class, and how scopes see it if it is new.
func (c *Compiler) class(v vector) uint32 {
	if len(v) == 0 {
		return 0
	}
	number, fresh := c.numbering.classes.of(v.text())
	if !fresh {
		return number
	}
	c.tables.classes[number] = v
	var seen []*scope
	parts := map[*scope]vector{}
	for _, e := range v {
		for _, s := range c.byAtom[atomOf(e)] {
			if s.taken { // it has its view of the class already
				continue
			}
			if parts[s] == nil {
				seen = append(seen, s)
			}
			parts[s] = append(parts[s], e)
		}
	}
	for _, s := range seen {
		reduced, fresh := s.reduced.of(parts[s].text())
		c.tables.Views[View{s.number, number}] = reduced
		if fresh {
			c.decide(s, reduced, parts[s])
		}
	}
	return number
}
