package reconcile

import (
	"fmt"
	"slices"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

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
	allowedSum uint64 // Service.AllowedSum as of the last apply
	rows       int    // number of svcs rows that lead here
	ranges     ranges
}

// apply brings one object's tables up to date. It only claims frontends; they are written at the
// end of the pass, when every table that they may lead to is in place. An error leaves the object
// consistent but out of date.
func (r *Reconciler) apply(key model.Key) error {
	wanted, uid, created := r.objects.compile(key)
	if wanted.Skipped {
		r.backlog.work += objectWork
	} else {
		r.backlog.work += work(wanted.Uses)
	}
	r.objects.bound(key, uid, created, wanted)
	if !r.synced && !r.objects.completeByRuntime(key) && r.adoption.adopts(wanted) {
		// The adopted state is complete; what the sources delivered so far may not be.
		r.held = append(r.held, key)
		return nil
	}
	o := r.objects.known[key]
	if o == nil {
		if len(wanted.Services) == 0 && len(wanted.Problems) == 0 {
			return nil
		}
		o = &object{key: key}
		r.objects.known[key] = o
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
		delete(r.objects.known, key)
		if key.Kind == model.KindPod {
			r.frontends.unwatch(key)
		}
	}
	r.problems.set(o, wanted.Problems)
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

// install returns the object's service with that ID: the installed one, one that an earlier agent
// left in the maps, or a new, empty one without frontends.
func (r *Reconciler) install(o *object, known map[portID]*service, id lb.ID) (*service, error) {
	if s := known[idOf(id)]; s != nil {
		return s, nil
	}
	text := nameText(id)
	s := r.adoption.found[text]
	delete(r.adoption.found, text)
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
