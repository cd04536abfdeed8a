package bpf

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// races is a node whose programs meet a rival that works on the same flows, at a moment that the
// test chooses.
type races struct {
	*bareNode
	steps     *ebpf.Map
	variables map[string]*ebpf.Variable
}

func newRaces(t *testing.T) *races {
	t.Helper()
	config := standardConfig()
	config.TickShift = 31 // a row that is used in a new tick would need more accesses
	w := newBareNodeOf(t, hooks()[0], config)
	spec, err := LoadRace()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables["cfg"].Set(w.config); err != nil {
		t.Fatal(err)
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: w.maps.Replacements(spec)})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(loaded.Close)
	raced := *w
	raced.programs = loaded.Programs
	return &races{bareNode: &raced, steps: loaded.Maps["race_steps"], variables: loaded.Variables}
}

func (r *races) set(t *testing.T, name string, value int) {
	t.Helper()
	if err := r.variables[name].Set(uint32(value)); err != nil {
		t.Fatal(err)
	}
}

// raceStep is what the rival does to a row, if it holds enough of the reply's row; see race.c.
type raceStep struct {
	Flow, Back bpf.MapsFlow
	Row        bpf.MapsCtEntry
	Kind       RaceRaceKind
	Needs      RaceRaceNeeds
	Port       uint16
	_          [3]uint16
}

// race is what the rival does while the program handles a packet of a flow, and the rows that exist
// before.
type race struct {
	name          string
	before, steps []raceStep
	rival         bool // the steps are another flow's, so this one's packet may be dropped
	// late is the number of accesses from the program's last look at what the rival changes to the
	// end. If the flow is forgotten that late, the packet still goes on as decided; if it is
	// established that late, the packet leaves from another port, with rows that nobody uses any
	// more.
	late int
}

// raceRow is a row of a flow.
type raceRow struct {
	flow bpf.MapsFlow
	row  bpf.MapsCtEntry
}

// sides are the rows of a flow, in both directions, half open and established.
type sides struct{ there, back, openThere, openBack raceRow }

const (
	claim, forget, opens = RaceRaceKindRACE_CLAIM, RaceRaceKindRACE_FORGET, RaceRaceKindRACE_OPEN

	anyhow, ifClaimed, ifOpened = RaceRaceNeedsRACE_NOTHING, RaceRaceNeedsRACE_HALF, RaceRaceNeedsRACE_OPENED
)

func (s sides) step(kind RaceRaceKind, of raceRow, needs RaceRaceNeeds) raceStep {
	return raceStep{Flow: of.flow, Back: s.back.flow, Row: of.row, Kind: kind, Needs: needs, Port: s.back.row.Dport}
}

// begins, establishes and ends return what the programs do to a flow, step by step. So does takes,
// after whose last step the rival is certain of its port.
func (s sides) begins() []raceStep {
	return []raceStep{s.step(claim, s.back, anyhow), s.step(claim, s.there, anyhow)}
}

func (s sides) takes() []raceStep {
	return []raceStep{
		s.step(claim, s.back, anyhow), s.step(RaceRaceKindRACE_YIELD, s.back, ifClaimed), s.step(RaceRaceKindRACE_WIN, s.there, ifClaimed),
	}
}

func (s sides) establishes() []raceStep {
	return []raceStep{
		s.step(opens, s.openBack, ifClaimed), s.step(RaceRaceKindRACE_LOOK, s.openBack, ifOpened), s.step(opens, s.openThere, ifOpened),
		s.step(forget, s.there, ifOpened), s.step(forget, s.back, ifOpened),
	}
}

func (s sides) ends() []raceStep {
	return []raceStep{s.step(forget, s.there, anyhow), s.step(forget, s.back, anyhow)}
}

// races returns what may happen to a flow meanwhile. The rival wants the port that the flow tries
// first.
func (s sides) races(rival sides, f family) []race {
	half, pushed := s.begins(), []raceStep{s.step(forget, s.back, anyhow)}
	full := rival.fills(f)
	return []race{
		{"a rival that would give way is established", full, rival.establishes(), true, 0},
		// Whoever forgets the rival may delete what has taken its port, as if that were pushed out.
		{"a rival that would give way is forgotten", full, rival.ends(), true, 4},
		{"a rival that would give way is forgotten and begun", full, slices.Concat(rival.ends(), rival.begins()), true, 4},
		{"another packet begins it", nil, half, false, 0},
		{"others begin and establish it", nil, slices.Concat(half, s.establishes()), false, 6},
		{"another packet establishes it", half, s.establishes(), false, 0},
		{"it is forgotten", half, s.ends(), false, 1},
		{"it is forgotten and begun", half, slices.Concat(s.ends(), half), false, 1},
		{"its reply is pushed out and claimed again", half, slices.Concat(pushed, half), false, 1},
		{"a rival takes its port", nil, slices.Concat(rival.takes(), rival.establishes()), true, 0},
		{"its reply is pushed out, and a rival takes the port", half, slices.Concat(pushed, rival.takes(), rival.establishes()), true, 1},
	}
}

// fills returns what makes a flow that is not established and the flows of others have all four
// ports. All others are younger, so it is the one to give way.
func (s sides) fills(f family) []raceStep {
	list := s.begins()
	list[0].Row.Seen -= 100
	list[0].Row.Checksum = maps.ChecksumOf(list[0].Flow, list[0].Row)
	own := maps.PortOf(s.back.flow.Dport)
	for port, i := uint16(61000), 0; port <= 61003; port++ {
		if port == own {
			continue
		}
		i++
		other := s.of(addrPort(f.client, 4100+i), f, s.there.flow.Proto)
		other.back.flow.Dport, other.there.row.Sport = maps.PortOf(port), maps.PortOf(port)
		other.back.row.Checksum, other.there.row.Checksum = maps.ChecksumOf(other.back.flow, other.back.row), maps.ChecksumOf(other.there.flow, other.there.row)
		list = append(list, other.begins()...)
	}
	return list
}

// learn has the programs begin and establish a flow, and returns the rows that they made.
func (w *bareNode) learn(t *testing.T, f family, proto byte) (s sides) {
	t.Helper()
	from, to, pod := f.client+":4000", f.node+":30080", f.pod+":8080"
	first := packet{from: from, to: to, proto: proto, flags: syn}
	_, out := w.run(t, w.in, first.bytes())
	snat := f.snat + ":" + portOf(out, f)
	w.run(t, w.in, packet{from: pod, to: snat, proto: proto, flags: syn | ack, seq: 1000}.bytes())
	there, back := flowOf(from, to, proto), flowOf(pod, snat, proto)
	row := func(m *ebpf.Map, flow bpf.MapsFlow) (of raceRow) {
		of.flow = flow
		if err := m.Lookup(&flow, &of.row); err != nil {
			t.Fatal(err)
		}
		return of
	}
	s.there, s.back = row(w.maps.CtPending, there), row(w.maps.CtPending, back)
	w.run(t, w.in, packet{from: from, to: to, proto: proto, flags: ack, ack: 1001}.bytes())
	s.openThere, s.openBack = row(w.maps.Ct, there), row(w.maps.Ct, back)
	return s
}

// of returns the rows of another client's flow with the same port.
func (s sides) of(client string, f family, proto byte) sides {
	flow := flowOf(client, f.node+":30080", proto)
	for _, r := range []*raceRow{&s.there, &s.openThere} {
		r.flow = flow
		r.row.Checksum = maps.ChecksumOf(r.flow, r.row)
	}
	for _, r := range []*raceRow{&s.back, &s.openBack} {
		r.row.Dport = flow.Sport
		r.row.Checksum = maps.ChecksumOf(r.flow, r.row)
	}
	return s
}

// Whatever a rival does to a flow while the program handles a packet of it, and before whichever
// map access: the packet leaves from a port of its flow, or not at all; in the end no flow has only
// one of its two rows, no port has two flows, and the row counts are right.
func TestRaces(t *testing.T) {
	rig.Root(t)
	for name, f := range families() {
		for _, proto := range []byte{tcp, udp} {
			t.Run(fmt.Sprintf("%s %d", name, proto), func(t *testing.T) {
				t.Parallel()
				r := newRaces(t)
				r.service(t, f.any+":30080", proto, maps.NodePort, f.pod+":8080", false)
				s := r.learn(t, f, proto)
				in := packet{from: f.client + ":4000", to: f.node + ":30080", proto: proto, flags: ack, ack: 1001}
				for _, race := range s.races(s.of(f.client+":4001", f, proto), f) {
					r.race(t, race, in, f)
				}
			})
		}
	}
}

// race runs the packet against every number of steps before every access.
func (r *races) race(t *testing.T, race race, in packet, f family) {
	t.Helper()
	r.setSteps(t, race.steps)
	last, late := 0, map[int]string{}
	for at := 1; at == 1 || at <= last; at++ {
		for n := 1; n <= len(race.steps); n++ {
			r.begin(t, race)
			what := fmt.Sprintf("%s: %d steps before access %d", race.name, n, at)
			if err := r.meet(t, what, race, in, f, at, n); err != nil {
				late[at] = fmt.Sprintf("%s: %v", what, err)
			}
			last = max(last, r.accesses(t))
		}
	}
	if len(late) > race.late || last < 5 {
		t.Errorf("%s: of %d accesses these are too late, want %d: %v", race.name, last, race.late, late)
	}
}

// setSteps sets the rival's steps.
func (r *races) setSteps(t *testing.T, steps []raceStep) {
	t.Helper()
	for i := range r.steps.MaxEntries() {
		var step raceStep
		if int(i) < len(steps) {
			step = steps[i]
		}
		if err := r.steps.Put(i, step); err != nil {
			t.Fatal(err)
		}
	}
}

// begin writes the initial rows into maps that have nothing else.
func (r *races) begin(t *testing.T, race race) {
	t.Helper()
	r.empty(t)
	for _, s := range race.before {
		if err := r.maps.CtPending.Put(&s.Flow, &s.Row); err != nil {
			t.Fatal(err)
		}
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	counts := make([]maps.LruStats, cpus)
	counts[0].Made = uint64(len(race.before))
	if err := r.maps.LruStats.Put(uint32(bpf.MapsLruLRU_CT_PENDING), counts); err != nil {
		t.Fatal(err)
	}
}

// accesses returns how many times the program looked up or wrote a map.
func (r *races) accesses(t *testing.T) int {
	t.Helper()
	var n uint32
	if err := r.variables["race_accesses"].Get(&n); err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// meet runs the program, with the first n steps before an access and the rest afterward. It
// returns as an error what is acceptable where the steps come too late.
func (r *races) meet(t *testing.T, what string, race race, in packet, f family, at, n int) (late error) {
	t.Helper()
	r.set(t, "race_accesses", 0)
	r.set(t, "race_won", 0)
	r.set(t, "race_at", at)
	r.set(t, "race_first", 0)
	r.set(t, "race_last", n)
	frame, flow := in.bytes(), flowOf(in.from, in.to, in.proto)
	verdict, out := r.run(t, r.in, frame)
	switch {
	case race.rival && (verdict == "drop" || verdict == "answer"):
	case verdict != "pass" || string(out) == string(frame):
		t.Errorf("%s: %s; counted: %v", what, verdict, r.reasons(t))
	case !r.leads(t, flowOf(f.pod+":8080", f.snat+":"+portOf(out, f), in.proto), flow):
		late = errors.New("it leaves from a port that is not its flow's")
	}
	if r.accesses(t) < at {
		n = 0 // the program did not get there
	}
	r.set(t, "race_first", n)
	r.set(t, "race_last", len(race.steps))
	if _, err := r.programs["race_end"].Run(&ebpf.RunOptions{Data: frame}); err != nil {
		t.Fatal(err)
	}
	open, half := r.wantOrder(t, what)
	var won uint32
	if err := r.variables["race_won"].Get(&won); err != nil {
		t.Fatal(err)
	}
	if back := race.steps[0].Back; won != 0 && r.leads(t, back, flow) {
		t.Errorf("%s: the rival has lost its port", what)
	}
	if row, ok := open[flow]; ok && late == nil {
		if other, ok := half[flow]; ok && maps.BackOf(flow, &other) != maps.BackOf(flow, &row) {
			late = errors.New("it has two ports")
		}
	}
	return late
}

// leads reports whether a row sends the packets of a flow to where those of another come from.
func (r *races) leads(t *testing.T, back, there bpf.MapsFlow) bool {
	t.Helper()
	for _, m := range []*ebpf.Map{r.maps.Ct, r.maps.CtPending} {
		row, ok, err := maps.LookupFlow(m, back)
		if err != nil {
			t.Fatal(err)
		}
		if ok && maps.BackOf(back, &row) == there {
			return true
		}
	}
	return false
}

// wantOrder fails unless every established flow has both of its rows, no port has two flows, and
// there are as many rows as were made and not deleted. It returns the rows.
func (r *races) wantOrder(t *testing.T, what string) (open, half map[bpf.MapsFlow]bpf.MapsCtEntry) {
	t.Helper()
	open, half = r.all(t, r.maps.Ct), r.all(t, r.maps.CtPending)
	for flow, row := range open {
		back := maps.BackOf(flow, &row)
		if reply, ok := open[back]; !ok || maps.BackOf(back, &reply) != flow {
			t.Errorf("%s: only one of two rows is established", what)
		}
		if other, ok := half[flow]; ok && row.Kind&maps.FlowReply != 0 && maps.BackOf(flow, &other) != back {
			t.Errorf("%s: a port has two flows", what)
		}
	}
	lruStats, err := maps.ReadLruStats(r.maps.LruStats, "ct_pending")
	if err != nil {
		t.Fatal(err)
	}
	if have := lruStats.Made - lruStats.Deleted; have != uint64(len(half)) {
		t.Errorf("%s: %d rows are half open, but %d are counted", what, len(half), have)
	}
	return open, half
}

func (r *races) all(t *testing.T, m *ebpf.Map) map[bpf.MapsFlow]bpf.MapsCtEntry {
	t.Helper()
	rows := map[bpf.MapsFlow]bpf.MapsCtEntry{}
	var key bpf.MapsFlow
	var row bpf.MapsCtEntry
	list := m.Iterate()
	for list.Next(&key, &row) {
		rows[key] = row
	}
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}
