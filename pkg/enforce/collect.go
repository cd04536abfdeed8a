package enforce

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	kernel "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// collect returns what a change of the tables changes in the maps. After a start, or a failure, that is
// whatever differs.
func (w *Writer) collect(change *policy.Change, t *policy.Tables, devices map[netip.Addr][]uint32) (*changes, error) {
	if w.fresh {
		whole, err := w.whole(t)
		if err != nil {
			return nil, err
		}
		change = whole
	}
	next := &changes{version: 1 - w.version, runs: map[extent][]policy.Run{}, placed: map[uint32]extent{}}
	err := errors.Join(w.collectRegions(next, change, t), w.collectPeers(next, change, t), w.collectViews(next, change, t))
	if err == nil {
		err = w.collectDecisions(next, change, t)
	}
	if err == nil {
		err = w.collectPods(next, t, devices)
	}
	return next, err
}

// whole returns a change that has all of the tables, and as gone what only the maps have.
func (w *Writer) whole(t *policy.Tables) (*policy.Change, error) {
	c := &policy.Change{
		Subjects: maps.Clone(t.Subjects), Peers: maps.Clone(t.Peers), Regions: maps.Clone(t.Regions), Views: maps.Clone(t.Views),
		Rows: maps.Clone(t.Rows), Decisions: maps.Clone(t.Decisions),
	}
	peers, err := all[kernel.Addr, bpf.MapsPolicyClass](w.maps.PolicyPeers)
	regions, err2 := all[bpf.MapsPrefixKey, bpf.MapsPolicyClass](w.maps.PolicyRegions)
	views, err3 := all[bpf.MapsPolicyView, bpf.MapsPolicyClass](w.maps.PolicyViews)
	decisions, err4 := all[bpf.MapsPolicyDecisionKey, bpf.MapsPolicyDecision](w.maps.PolicyDecisions)
	for addr := range peers {
		gone(c.Peers, kernel.NetipOf(addr), 0)
	}
	for prefix := range regions {
		gone(c.Regions, kernel.PrefixOf(prefix), policy.Absent)
	}
	for view := range views {
		gone(c.Views, policy.View{Scope: view.Scope, Class: view.Class}, 0)
	}
	for row := range decisions {
		gone(c.Rows, policy.Row{Subject: row.Subject, Direction: model.Direction(row.Direction), Reduced: row.Class}, 0)
		gone(c.Subjects, row.Subject, 0)
	}
	for number := range w.at { // a change that failed may have given it up
		if number != 0 {
			gone(c.Decisions, number, nil)
		}
	}
	return c, errors.Join(err, err2, err3, err4)
}

// gone notes that a row is gone, unless it is there.
func gone[K comparable, V any](rows map[K]V, key K, none V) {
	if _, there := rows[key]; !there {
		rows[key] = none
	}
}

// roots are the regions that always have a row: without that of IPv4 those of IPv6 would include it.
func roots() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("::/0"), netip.MustParsePrefix("0.0.0.0/0")}
}

// collectRegions has the widest first, so that those within know what will be around them.
func (w *Writer) collectRegions(next *changes, change *policy.Change, t *policy.Tables) error {
	regions := maps.Clone(change.Regions)
	for _, root := range roots() {
		if is, listed := regions[root]; w.fresh && !listed || listed && is == policy.Absent {
			regions[root] = 0
		}
	}
	for prefix, is := range regions {
		was, _, err := w.regionWas(prefix)
		if err != nil {
			return err
		}
		c := class{was: was, is: is, gone: is == policy.Absent}
		if c.gone {
			c.is = around(t, prefix)
		}
		put(&next.regions, kernel.PrefixKey(prefix), c)
	}
	return nil
}

// around returns the class of the longest region that contains a prefix which is none itself.
func around(t *policy.Tables, prefix netip.Prefix) uint32 {
	for bits := prefix.Bits() - 1; bits >= 0; bits-- {
		outer, _ := prefix.Addr().Prefix(bits)
		if is, found := t.Regions[outer]; found {
			return is
		}
	}
	return 0
}

// regionWas returns the class that the maps give to a prefix, from the longest region that contains it.
func (w *Writer) regionWas(prefix netip.Prefix) (was uint32, found bool, err error) {
	var row bpf.MapsPolicyClass
	err = w.maps.PolicyRegions.Lookup(kernel.PrefixKey(prefix), &row)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, false, nil
	}
	return row.Class[w.version], err == nil, err
}

func (w *Writer) collectPeers(next *changes, change *policy.Change, t *policy.Tables) error {
	for addr, is := range change.Peers {
		_, there := t.Peers[addr]
		c := class{is: is, gone: !there}
		if c.gone {
			c.is = t.Class(addr)
		}
		var row bpf.MapsPolicyClass
		err := w.maps.PolicyPeers.Lookup(kernel.AddrOf(addr), &row)
		switch {
		case err == nil:
			c.was = row.Class[w.version]
		case !errors.Is(err, ebpf.ErrKeyNotExist):
			return err
		default:
			if c.was, _, err = w.regionWas(netip.PrefixFrom(addr, addr.BitLen())); err != nil {
				return err
			}
		}
		put(&next.peers, kernel.AddrOf(addr), c)
	}
	return nil
}

func (w *Writer) collectViews(next *changes, change *policy.Change, t *policy.Tables) error {
	for view, is := range change.Views {
		key := bpf.MapsPolicyView{Scope: view.Scope, Class: view.Class}
		var row bpf.MapsPolicyClass
		if err := w.maps.PolicyViews.Lookup(key, &row); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		_, there := t.Views[view]
		put(&next.views, key, class{was: row.Class[w.version], is: is, gone: !there})
	}
	return nil
}

// everything are the runs of a subject in a direction in which no policy denies anything: number 0.
var everything = []policy.Run{{Accept: true}}

// collectDecisions finds rows for runs that are new, and then lets decisions lead to them.
func (w *Writer) collectDecisions(next *changes, change *policy.Change, t *policy.Tables) error {
	rows := maps.Clone(change.Rows)
	moved := map[uint32]bool{}
	numbers := slices.Sorted(maps.Keys(change.Decisions))
	if _, placed := w.at[0]; !placed {
		numbers = append(numbers, 0)
	}
	for _, number := range numbers {
		runs := t.Decisions[number]
		if number == 0 {
			runs = everything
		}
		old, had := w.at[number]
		if had {
			next.freed = append(next.freed, old)
		}
		if len(runs) == 0 {
			next.unplaced = append(next.unplaced, number)
			continue
		}
		at, err := w.runs.find(uint32(len(runs)))
		if err != nil {
			return err
		}
		next.runs[at], next.placed[number] = runs, at
		moved[number] = had
	}
	for row, number := range t.Rows {
		if moved[number] {
			rows[row] = number
		}
	}
	for subject := range change.Subjects {
		for direction := range model.Direction(model.Directions) {
			row := policy.Row{Subject: subject, Direction: direction}
			rows[row] = t.Rows[row]
		}
	}
	freed := map[extent]bool{}
	for row, number := range rows {
		if err := w.collectDecision(next, row, number, t, freed); err != nil {
			return err
		}
	}
	if w.fresh { // what rows of the former agent lead to
		next.freed = slices.Collect(maps.Keys(freed))
	}
	return nil
}

func (w *Writer) collectDecision(next *changes, row policy.Row, number uint32, t *policy.Tables, freed map[extent]bool) error {
	key := bpf.MapsPolicyDecisionKey{Subject: row.Subject, Class: row.Reduced, Direction: uint32(row.Direction)}
	var have bpf.MapsPolicyDecision
	if err := w.maps.PolicyDecisions.Lookup(key, &have); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	p := ports{was: have.Ports[w.version]}
	_, known := t.Subjects[row.Subject]
	if number != 0 || known && row.Reduced == 0 {
		at, placed := next.placed[number]
		if !placed {
			at = w.at[number]
		}
		p.is = bpf.MapsPolicyPorts{First: at.first, Count: at.count}
	}
	p.gone = p.is.Count == 0
	if p.was.Count != 0 {
		freed[extent{p.was.First, p.was.Count}] = true
	}
	put(&next.decisions, key, p)
	return nil
}

// nobody is the number of no subject: there are no decisions for it, so everything is denied.
const nobody = ^uint32(0)

// collectPods has a row for each device of a pod that is known, also if no policy is about it.
func (w *Writer) collectPods(next *changes, t *policy.Tables, devices map[netip.Addr][]uint32) error {
	have, err := all[uint32, bpf.MapsPolicyPod](w.maps.PolicyPods)
	if err != nil {
		return err
	}
	want := w.wantedPods(t, devices)
	for index, row := range have {
		if is, known := want[index]; !known || is != row.Subject[w.version] {
			put(&next.pods, index, subject{was: row.Subject[w.version], is: is, adopts: adoptionOf(row), gone: !known})
		}
	}
	for index, is := range want {
		row, had := have[index]
		if had && is == row.Subject[w.version] {
			continue
		}
		s := subject{was: row.Subject[w.version], is: is, adopts: adoptionOf(row)}
		if is.Subject != 0 && s.was.Subject == 0 {
			if s.adopts, err = w.adoptUntil(index, had); err != nil {
				return err
			}
		}
		// What is new may be seen before the version is in force, in which a former agent may have given these
		// numbers to others.
		if !had && is.Subject != 0 {
			s.was = bpf.MapsPolicySubject{Subject: nobody, Flags: is.Flags}
		} else if !had {
			s.was = is
		}
		put(&next.pods, index, s)
	}
	return nil
}

// wantedPods returns what tables say about the pods at devices.
func (w *Writer) wantedPods(t *policy.Tables, devices map[netip.Addr][]uint32) map[uint32]bpf.MapsPolicySubject {
	want := map[uint32]bpf.MapsPolicySubject{}
	for addr, pod := range t.Pods {
		row := bpf.MapsPolicySubject{Subject: pod.Subject, Scope: t.Subjects[pod.Subject], Generation: pod.Generation}
		if w.audit {
			row.Flags = uint32(bpf.MapsPolicySubjectFlagPOLICY_AUDIT)
		}
		for _, index := range devices[addr] {
			want[index] = row
			if k, has := w.kept[index]; has && k.compiled == row.Generation {
				s := row
				s.Generation = k.generation
				want[index] = s
			}
		}
	}
	return want
}

// adoptUntil returns until when a pod may have flows from before a policy was about it: only if its packets
// passed until now.
func (w *Writer) adoptUntil(index uint32, had bool) (adoption, error) {
	var link bpf.MapsPodLink
	if err := w.maps.PodLinks.Lookup(index, &link); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return adoption{}, err
	}
	if !had && link.Flags&uint16(bpf.MapsPodFlagPOD_POLICY) != 0 {
		return adoption{}, nil
	}
	now, err := w.clock.Now()
	return adoption{now + uint32(adoptFor/w.tick.Duration), now + uint32(answersFor/w.tick.Duration)}, err
}
