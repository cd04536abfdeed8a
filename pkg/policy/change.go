package policy

import (
	"maps"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// Absent stands for a region that went away: one of class 0 is what a block leaves out.
const Absent = ^uint32(0)

// Change is what an Update changed in each of the tables. A row that went away has its zero value,
// and a region Absent.
type Change struct {
	Pods      map[netip.Addr]PodRow
	Subjects  map[uint32]uint32
	Peers     map[netip.Addr]uint32
	Regions   map[netip.Prefix]uint32
	Views     map[View]uint32
	Rows      map[Row]uint32
	Decisions map[uint32][]Run
	Rules     map[uint32]Rule
}

func newChange() *Change {
	return &Change{
		Pods: map[netip.Addr]PodRow{}, Subjects: map[uint32]uint32{}, Peers: map[netip.Addr]uint32{}, Regions: map[netip.Prefix]uint32{},
		Views: map[View]uint32{}, Rows: map[Row]uint32{}, Decisions: map[uint32][]Run{}, Rules: map[uint32]Rule{},
	}
}

// Size returns how many rows change.
func (c *Change) Size() int {
	return len(c.Pods) + len(c.Subjects) + len(c.Peers) + len(c.Regions) + len(c.Views) + len(c.Rows) + len(c.Decisions) + len(c.Rules)
}

// add adds a later change.
func (c *Change) add(later *Change) {
	maps.Copy(c.Pods, later.Pods)
	maps.Copy(c.Subjects, later.Subjects)
	maps.Copy(c.Peers, later.Peers)
	maps.Copy(c.Regions, later.Regions)
	maps.Copy(c.Views, later.Views)
	maps.Copy(c.Rows, later.Rows)
	maps.Copy(c.Decisions, later.Decisions)
	maps.Copy(c.Rules, later.Rules)
}

// difference returns what leads from one state of the tables to another. Kept says that they share
// the classes of addresses.
func difference(before, after *Tables, kept bool) *Change {
	change := &Change{
		Pods: changed(before.Pods, after.Pods, PodRow{}), Subjects: changed(before.Subjects, after.Subjects, 0),
		Views: changed(before.Views, after.Views, 0), Rows: changed(before.Rows, after.Rows, 0), Rules: changed(before.Rules, after.Rules, Rule{}),
		Decisions: map[uint32][]Run{},
	}
	if !kept {
		change.Peers, change.Regions = changed(before.Peers, after.Peers, 0), changed(before.Regions, after.Regions, Absent)
	}
	for number, runs := range after.Decisions {
		if !slices.Equal(before.Decisions[number], runs) {
			change.Decisions[number] = runs
		}
	}
	for number := range before.Decisions {
		if _, found := after.Decisions[number]; !found {
			change.Decisions[number] = nil
		}
	}
	return change
}

func changed[K, V comparable](before, after map[K]V, none V) map[K]V {
	out := map[K]V{}
	for key, value := range after {
		if was, found := before[key]; !found || was != value {
			out[key] = value
		}
	}
	for key := range before {
		if _, found := after[key]; !found {
			out[key] = none
		}
	}
	return out
}

// reclass gives an address the class that it has now.
func (c *Compiler) reclass(addr netip.Addr, change *Change) {
	t := c.tables
	before := t.Class(addr)
	rows, views, decisions := len(t.Rows), len(t.Views), len(t.Decisions)
	class, own := c.classOf(addr)
	if len(t.Rows)+len(t.Views)+len(t.Decisions) > rows+views+decisions {
		c.note(class, change)
	}
	switch was, had := t.Peers[addr]; {
	case own && (!had || was != class):
		t.Peers[addr], change.Peers[addr] = class, class
	case !own && had:
		delete(t.Peers, addr)
		change.Peers[addr] = 0
	}
	for _, s := range c.scopes {
		c.due = c.due || s.over != "" && t.Problems[s.namespace] == nil
	}
	if len(t.Decisions) > decisions || len(t.Rows) > rows {
		most, _ := c.crowded()
		c.due = c.due || most != nil
	}
	if c.pods.owner(addr) == nil {
		if _, known := c.previous[addr]; !known && before != class {
			c.previous[addr] = before
		}
		return
	}
	pairs := map[[2]uint32]struct{}{{before, class}: {}}
	if earlier, known := c.previous[addr]; known {
		pairs[[2]uint32{earlier, class}] = struct{}{}
		delete(c.previous, addr)
	}
	c.raise(t, pairs, change)
}

// note records the rows of a new class.
func (c *Compiler) note(class uint32, change *Change) {
	t := c.tables
	for _, s := range c.scopes {
		view := View{s.number, class}
		reduced, found := t.Views[view]
		if !found {
			continue
		}
		change.Views[view] = reduced
		for _, subject := range s.subjects {
			for direction := range model.Direction(model.Directions) {
				row := Row{subject.number, direction, reduced}
				if number, found := t.Rows[row]; found {
					change.Rows[row], change.Decisions[number] = number, t.Decisions[number]
				}
			}
		}
	}
}

// raise gives the pods of this node new generations for which something was accepted in the tables
// before that is not now, if an address changed its class as one of the pairs says.
func (c *Compiler) raise(before *Tables, pairs map[[2]uint32]struct{}, change *Change) {
	for pair := range pairs {
		if pair[0] == pair[1] {
			delete(pairs, pair)
		}
	}
	if len(pairs) == 0 {
		return
	}
	memo, raised := map[[2]uint32]bool{}, map[model.Name]uint32{}
	for addr, row := range c.tables.Pods {
		if c.lost(memo, before, row.Subject, row.Subject, pairs) {
			if raised[row.Pod] == 0 {
				c.generation++
				raised[row.Pod] = c.generation
			}
			row.Generation = raised[row.Pod]
			c.tables.Pods[addr], change.Pods[addr] = row, row
		}
	}
}

// renew gives pods new generations that Renew was told of.
func (c *Compiler) renew(change *Change) {
	given := map[model.Name]uint32{}
	for addr, row := range c.tables.Pods {
		if _, asked := c.renewed[row.Pod]; !asked || row.Subject == 0 {
			continue
		}
		if given[row.Pod] == 0 {
			c.generation++
			given[row.Pod] = c.generation
		}
		row.Generation = given[row.Pod]
		c.tables.Pods[addr], change.Pods[addr] = row, row
	}
	clear(c.renewed)
}

// lost reports whether a pod may have lost something by moving from one subject to another while
// addresses changed their classes as the pairs say.
func (c *Compiler) lost(memo map[[2]uint32]bool, before *Tables, was, is uint32, pairs map[[2]uint32]struct{}) bool {
	if is == 0 {
		return false
	}
	key := [2]uint32{was, is}
	lost, known := memo[key]
	if known {
		return lost
	}
	for pair := range pairs {
		if was == is && pair[0] == pair[1] { // no view or row ever changes what it means
			continue
		}
		for direction := range model.Direction(model.Directions) {
			from, to := before.number(was, direction, pair[0]), c.tables.number(is, direction, pair[1])
			if from != to && narrows(before.decision(was, direction, pair[0]), c.tables.decision(is, direction, pair[1])) {
				memo[key] = true
				return true
			}
		}
	}
	memo[key] = false
	return false
}

// setPods writes the rows of this node's pods.
func (c *Compiler) setPods(before *Tables, kept bool) {
	subjects := map[model.Name]uint32{}
	for _, s := range c.scopes {
		for _, subject := range s.subjects {
			for _, pod := range subject.pods {
				subjects[pod] = subject.number
			}
		}
	}
	pairs, memo := c.pairs(before, kept), map[[2]uint32]bool{}
	// What was accepted from an address that was the node's may be anybody's now.
	left := false
	for addr := range before.Self {
		_, still := c.tables.Self[addr]
		left = left || !still
	}
	names := slices.SortedFunc(maps.Keys(c.local), model.Name.Compare)
	for _, name := range names {
		if c.local[name].HostNetwork {
			continue
		}
		row, fresh := PodRow{Pod: name, Subject: subjects[name]}, left
		for _, addr := range c.local[name].Addrs {
			was, had := before.Pods[addr.Unmap()]
			row.Generation = max(row.Generation, was.Generation)
			fresh = fresh || !had || was.Pod != name || c.lost(memo, before, was.Subject, row.Subject, pairs)
		}
		if fresh || row.Generation == 0 {
			row.Generation = 0
			if row.Subject != 0 {
				c.generation++
				row.Generation = c.generation
			}
		}
		for _, addr := range c.local[name].Addrs {
			c.tables.Pods[addr.Unmap()] = row
		}
	}
}

// pairs returns how the classes of addresses changed since the tables before, and how they did not.
func (c *Compiler) pairs(before *Tables, kept bool) map[[2]uint32]struct{} {
	out := map[[2]uint32]struct{}{{}: {}}
	for addr, class := range c.previous {
		out[[2]uint32{class, c.tables.Class(addr)}] = struct{}{}
	}
	if kept {
		for class := range c.tables.classes {
			out[[2]uint32{class, class}] = struct{}{}
		}
		return out
	}
	for addr, class := range c.tables.Peers {
		out[[2]uint32{before.Class(addr), class}] = struct{}{}
	}
	for addr, class := range before.Peers {
		if _, found := c.tables.Peers[addr]; !found {
			out[[2]uint32{class, c.tables.Class(addr)}] = struct{}{}
		}
	}
	for _, regions := range []map[netip.Prefix]uint32{before.Regions, c.tables.Regions} {
		for prefix := range regions {
			out[[2]uint32{before.region(prefix.Addr(), prefix.Bits()), c.tables.region(prefix.Addr(), prefix.Bits())}] = struct{}{}
		}
	}
	return out
}
