package reconcile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync/atomic"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// object is what is installed for one Service or Pod.
type object struct {
	key      model.Key
	uid      string
	created  int64
	services []*service
	checks   []lb.HealthCheck
	idle     bool // it has had no endpoints for long
}

// service is one row of the services map and everything that belongs to it.
type service struct {
	object     *object
	port       string
	protocol   model.Protocol
	family     model.Family
	index      uint32
	words      [maps.Scopes]maps.Word
	backends   []uint32 // rows of the backends map, each listed once
	frontends  []maps.SvcKey
	allowedSum uint64 // Service.KeptSum as of the last apply
	rows       int    // number of svcs rows that lead here
	ranges     ranges
}

// apply brings one object's tables up to date. It only claims frontends; they are written at the
// end of the pass, when every table that they may lead to is in place. An error leaves the object
// consistent but out of date.
func (r *Reconciler) apply(key model.Key) error {
	wanted, uid, created := r.compile(key)
	if wanted.Skipped {
		r.backlog.work += objectWork
	} else {
		r.backlog.work += work(wanted.Uses)
	}
	r.bound(key, uid, created, wanted)
	if !r.synced && !r.completeByRuntime(key) && r.adopts(wanted) {
		// The adopted state is complete; what the sources delivered so far may not be.
		r.held = append(r.held, key)
		return nil
	}
	o := r.objects[key]
	if o == nil {
		if len(wanted.Services) == 0 && len(wanted.Problems) == 0 {
			return nil
		}
		o = &object{key: key}
		r.objects[key] = o
	}
	o.uid, o.created = uid, created
	known := r.retireUnwanted(o, wanted)
	for i := range wanted.Services {
		w := &wanted.Services[i]
		s, err := r.install(o, known, w.ID)
		if err != nil {
			return err
		}
		if err := r.addRanges(s, w); err != nil {
			return err
		}
		if err := r.setTables(s, w); err != nil {
			return err
		}
		if err := r.dropRanges(s, w.SourceRanges); err != nil {
			return err
		}
		bindFrontends(w, s.index)
		wanted.Problems = r.setFrontends(s, w, wanted.Problems)
	}
	r.setChecks(o, wanted.Checks)
	r.noteIdle(o, wanted)
	if len(o.services) == 0 && len(wanted.Problems) == 0 {
		delete(r.objects, key)
		if key.Kind == model.KindPod {
			r.frontends.unwatch(key)
		}
	}
	r.setProblems(o, wanted.Problems)
	return nil
}

// portID names a service among those of its object.
type portID struct {
	port     string
	protocol model.Protocol
	family   model.Family
}

func idOf(id lb.ID) portID { return portID{id.Port, id.Protocol, id.Family} }

// retireUnwanted retires the services that an object no longer wants, and returns the others.
func (r *Reconciler) retireUnwanted(o *object, wanted *lb.Wanted) map[portID]*service {
	known := make(map[portID]*service, len(o.services))
	if len(o.services) == 0 {
		return known
	}
	wants := make(map[portID]struct{}, len(wanted.Services))
	for i := range wanted.Services {
		wants[idOf(wanted.Services[i].ID)] = struct{}{}
	}
	for _, s := range o.services {
		id := portID{s.port, s.protocol, s.family}
		if _, ok := wants[id]; ok {
			known[id] = s
		} else {
			r.retire(s)
		}
	}
	o.services = slices.DeleteFunc(o.services, func(s *service) bool { return s.object == nil })
	return known
}

// setChecks publishes changed health checks, after the maps match them.
func (r *Reconciler) setChecks(o *object, checks []lb.HealthCheck) {
	if r.cfg.Checked == nil || slices.Equal(o.checks, checks) {
		return
	}
	o.checks = slices.Clone(checks)
	r.cfg.Checked(o.key, o.uid, checks)
}

func (r *Reconciler) compile(key model.Key) (wanted *lb.Wanted, uid string, created int64) {
	switch key.Kind {
	case model.KindPod:
		pod, attached := r.cfg.Store.Pod(key.Name), r.cfg.Store.Attached(key.Name)
		// The order of claims must not change when the Pod becomes known.
		if len(attached) > 0 && !attached[0].Lost {
			uid, created = attached[0].UID, attached[0].Created
		}
		if pod != nil {
			uid, created = pod.UID, cmp.Or(created, pod.Created)
		}
		return r.compiler.Pod(key.Name, pod, attached), uid, created
	default:
		if svc, endpoints := r.cfg.Store.Service(key.Name); svc != nil {
			return r.compiler.ServiceWithin(svc, endpoints, r.quotas.room(key)), svc.UID, svc.Created
		}
	}
	return &lb.Wanted{}, "", 0
}

// completeByRuntime reports whether the runtime has said everything that an object wants, so that it
// need not wait for the sources.
func (r *Reconciler) completeByRuntime(key model.Key) bool {
	list := r.cfg.Store.Attached(key.Name)
	return key.Kind == model.KindPod && len(list) > 0 && !slices.ContainsFunc(list, func(a *model.Attachment) bool { return a.Lost })
}

// install returns the object's service with that ID: the installed one, one that an earlier agent
// left in the maps, or a new, empty one without frontends.
func (r *Reconciler) install(o *object, known map[portID]*service, id lb.ID) (*service, error) {
	if s := known[idOf(id)]; s != nil {
		return s, nil
	}
	text := nameText(id)
	s := r.adopted[text]
	delete(r.adopted, text)
	if s == nil {
		index, ok := r.services.Alloc()
		if !ok {
			if err := r.grow(maps.Sizes{Services: 2 * uint32(len(r.tables.Services))}); err != nil {
				return nil, err
			}
			if index, ok = r.services.Alloc(); !ok {
				return nil, fmt.Errorf("the map of services is full with %d rows", len(r.tables.Services))
			}
		}
		s = &service{index: index}
		r.byIndex[index] = s
		// Continue with the tag and the epoch of the row's previous owner, so that no slot and no
		// client of that owner can match.
		row := &r.tables.Services[index]
		s.words[0] = maps.MakeWord(0, 0, maps.Word(row.Words[0]).Tag())
		*row = maps.Service{Words: [maps.Scopes]uint64{uint64(s.words[0]), 0}, AffinityEpoch: row.AffinityEpoch + 1}
		r.tables.Names[index] = maps.NameText{}
		copyText(&r.tables.Names[index], text)
		r.stats.Writes += 2
	}
	s.object, s.port, s.protocol, s.family = o, id.Port, id.Protocol, id.Family
	o.services = append(o.services, s)
	known[idOf(id)] = s
	return s, nil
}

// setTables brings a service's backends, slots and settings up to date. New rows are written before
// anything leads to them, and storing the word switches to them. Everything that can fail happens
// before the first write.
func (r *Reconciler) setTables(s *service, w *lb.Service) error {
	if err := r.planBackends(s, w); err != nil {
		return err
	}
	var words [maps.Scopes]maps.Word
	for scope, table := range w.Tables {
		var err error
		if words[scope], err = r.planScope(s, scope, table); err != nil {
			r.dropWords(s, words[:scope])
			r.dropPlan()
			return err
		}
	}
	r.writeBackends(s, w)
	for scope, table := range w.Tables {
		r.setScope(s, scope, words[scope], table)
	}
	r.unmarkBackends(s)
	row := &r.tables.Services[s.index]
	if (row.Flags^w.Flags)&maps.SourceRanges != 0 {
		r.beginRangeEpochs()
	}
	// Who switches affinity off wants its clients spread anew, also when it is on again.
	if row.AffinitySeconds != 0 && w.AffinitySeconds == 0 {
		row.AffinityEpoch++
	}
	if row.Algorithm != uint8(w.Algorithm) || row.Flags != w.Flags || row.AffinitySeconds != w.AffinitySeconds {
		row.Algorithm, row.Flags, row.AffinitySeconds = uint8(w.Algorithm), w.Flags, w.AffinitySeconds
		r.stats.Writes++
	}
	if s.allowedSum != w.AllowedSum && s.allowedSum != 0 {
		r.left[s.protocol] = true
	}
	s.allowedSum = w.AllowedSum
	return nil
}

// planScope returns the new word of a scope: the current one if the table is unchanged, or one with
// newly allocated slots.
func (r *Reconciler) planScope(s *service, scope int, table []uint32) (maps.Word, error) {
	was := s.words[scope]
	if r.sameTable(s.index, was, table) {
		return was, nil
	}
	var off uint32
	if len(table) > 0 {
		var ok bool
		if off, ok = r.extents.Alloc(uint32(len(table))); !ok {
			need := r.extents.Need(uint32(len(table)))
			if err := r.grow(maps.Sizes{Slots: max(need, 2*uint32(len(r.tables.Slots)))}); err != nil {
				return 0, err
			}
			if off, ok = r.extents.Alloc(uint32(len(table))); !ok {
				return 0, fmt.Errorf("%d slots do not fit into the map of %d slots", len(table), len(r.tables.Slots))
			}
		}
	}
	tag := max(s.words[maps.ScopeAll].Tag(), s.words[maps.ScopeLocal].Tag()) + 1 + uint16(scope)
	if tag <= uint16(scope) { // wrapped: the tags of the two scopes must still differ
		tag = 1 + uint16(scope)
	}
	return maps.MakeWord(off, len(table), tag), nil
}

// dropWords frees the slots of planned words that will not be used.
func (r *Reconciler) dropWords(s *service, words []maps.Word) {
	for scope, word := range words {
		if word != s.words[scope] && word.Len() > 0 {
			r.extents.Free(word.Off(), uint32(word.Len()))
		}
	}
}

// setScope switches one scope of a service to its planned table.
func (r *Reconciler) setScope(s *service, scope int, word maps.Word, table []uint32) {
	was := s.words[scope]
	stored := &r.tables.Services[s.index].Words[scope]
	if word == was {
		if atomic.LoadUint64(stored) != uint64(was) { // the row was damaged
			atomic.StoreUint64(stored, uint64(was))
			r.stats.Writes++
		}
		return
	}
	slots := r.tables.Slots[word.Off() : int(word.Off())+len(table)]
	for i, position := range table {
		atomic.StoreUint64(&slots[i].Value, maps.MakeSlot(r.plan.rows[position], s.index, word.Tag()).Value)
	}
	atomic.StoreUint64(stored, uint64(word))
	s.words[scope] = word
	r.stats.Writes += uint64(len(table)) + 1
	if was.Len() > 0 {
		r.extents.Free(was.Off(), uint32(was.Len()))
	}
}

// sameTable reports whether the slots of a word are exactly those that table would get.
func (r *Reconciler) sameTable(index uint32, word maps.Word, table []uint32) bool {
	if word.Len() != len(table) {
		return false
	}
	slots := r.tables.Slots[word.Off():]
	for i, position := range table {
		if slots[i] != maps.MakeSlot(r.plan.rows[position], index, word.Tag()) {
			return false
		}
	}
	return true
}

// setFrontends claims the frontends that the service wants and releases those it no longer wants. A
// frontend that it did not get is a problem.
func (r *Reconciler) setFrontends(s *service, w *lb.Service, problems []model.Problem) []model.Problem {
	wants := containsKey(w.Frontends)
	for _, key := range s.frontends {
		if !wants(key) {
			r.frontends.release(key, s)
		}
	}
	s.frontends = s.frontends[:0]
	for _, f := range w.Frontends {
		if winner, lost := r.frontends.shadowed(f.Key, f.Kind, s.object.key); lost {
			r.frontends.release(f.Key, s)
			problems = append(problems, conflict(f.Key, winner))
			continue
		}
		s.frontends = append(s.frontends, f.Key)
		if winner := r.frontends.claim(f.Key, newClaim(s, f.Kind)); winner.service != s && !shared(f.Key) {
			problems = append(problems, conflict(f.Key, winner))
		}
	}
	return problems
}

// usualKeys is the largest number of frontends that are searched one by one.
const usualKeys = 16

// containsKey returns a function that reports whether a key is among the frontends.
func containsKey(list []lb.Frontend) func(maps.SvcKey) bool {
	if len(list) <= usualKeys {
		return func(key maps.SvcKey) bool {
			return slices.ContainsFunc(list, func(f lb.Frontend) bool { return f.Key == key })
		}
	}
	keys := make(map[maps.SvcKey]struct{}, len(list))
	for _, f := range list {
		keys[f.Key] = struct{}{}
	}
	return func(key maps.SvcKey) bool {
		_, ok := keys[key]
		return ok
	}
}

// retire withdraws a service's claims. It is torn down when no row leads to it any more.
func (r *Reconciler) retire(s *service) {
	for _, key := range s.frontends {
		r.frontends.release(key, s)
	}
	s.object = nil
	r.retired = append(r.retired, s)
}

// teardown frees the rows of retired services once no frontend can lead to them. A service whose
// ranges cannot be deleted stays: the next owner of its index would let those clients in.
func (r *Reconciler) teardown() (failed error) {
	if len(r.frontends.unsure) > 0 {
		return nil
	}
	r.retired = slices.DeleteFunc(r.retired, func(s *service) bool {
		if s.rows > 0 {
			return false
		}
		if err := r.dropRanges(s, nil); err != nil {
			failed = err
			return false
		}
		row := &r.tables.Services[s.index]
		tag := max(s.words[maps.ScopeAll].Tag(), s.words[maps.ScopeLocal].Tag())
		for scope, word := range s.words {
			atomic.StoreUint64(&row.Words[scope], uint64(maps.MakeWord(0, 0, tag)))
			if word.Len() > 0 {
				r.extents.Free(word.Off(), uint32(word.Len()))
			}
		}
		r.tables.Names[s.index] = maps.NameText{}
		r.stats.Writes += 2
		for _, index := range s.backends {
			r.freeBackend(index)
		}
		r.byIndex[s.index] = nil
		r.services.Free(s.index)
		return true
	})
	return failed
}

// nameText returns the name of a service as stored in the maps. A name that is too long is cut and
// ends in a digest of the whole.
func nameText(id lb.ID) string {
	text := id.String()
	const room = len(maps.NameText{}.Text) - 1
	if len(text) <= room {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf("%s~%s", text[:room-17], hex.EncodeToString(sum[:8]))
}

func copyText(name *maps.NameText, text string) {
	for i := range len(text) {
		name.Text[i] = int8(text[i])
	}
}
