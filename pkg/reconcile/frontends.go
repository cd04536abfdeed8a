package reconcile

import (
	"cmp"
	"fmt"
	"strings"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// claim is a service's wish to have a frontend.
type claim struct {
	service *service
	kind    uint32
	created int64 // of its object when it claimed
	uid     string
}

func newClaim(s *service, kind uint32) claim { return claim{s, kind, s.object.created, s.object.uid} }

// rank orders the ways to have an address. A ClusterIP comes from the API server and a load balancer
// address from a controller, which hand out each one once. An externalIP is what its author wrote.
func (a claim) rank() int {
	switch a.kind {
	case maps.ClusterIP:
		return 0
	case maps.LoadBalancer:
		return 1
	}
	return 2
}

// before reports whether a has precedence over b: Services before Pods, then by the kind of address,
// then the older object, then the lower UID. It depends on the objects alone, so every node decides
// alike, also after a restart.
func (a claim) before(b claim) bool {
	x, y := a.service.object, b.service.object
	return cmp.Or(
		cmp.Compare(x.key.Kind, y.key.Kind),
		cmp.Compare(a.rank(), b.rank()),
		cmp.Compare(a.created, b.created),
		strings.Compare(a.uid, b.uid),
		x.key.Compare(y.key),
		strings.Compare(a.service.port, b.service.port), // two ports of one object
	) < 0
}

// frontend is the state of one key: its row in the map, its owner, and the other claims.
type frontend struct {
	row     maps.Svc
	present bool
	owner   claim
	others  rivals
}

// frontends decides who owns each frontend and tracks which rows have to be written.
type frontends struct {
	keys     map[maps.SvcKey]frontend
	watchers map[maps.SvcKey]map[model.Key]struct{} // pods whose host port would shadow a NodePort, by the NodePort's key
	touched  map[maps.SvcKey]struct{}               // keys whose row may have to change
	unsure   []maps.SvcKey                          // keys of an operation that failed, perhaps half way
	crowded  bool                                   // touched was large
	present  int
	hosted   int // how many of the rows are hosted backends instead of frontends
	dirty    func(...model.Key)
}

// count adds more, which may be negative, to the number of rows of the key's kind.
func (f *frontends) count(key maps.SvcKey, more int) {
	f.present += more
	if maps.IsHosted(key) {
		f.hosted += more
	}
}

// ownedBy returns how many frontends a service owns. What it only claims is another's, and rows of
// hosted backends are no frontends.
func (f *frontends) ownedBy(s *service) (n int) {
	for _, key := range s.frontends {
		if !maps.IsHosted(key) && f.keys[key].owner.service == s {
			n++
		}
	}
	return n
}

func newFrontends(dirty func(...model.Key)) frontends {
	return frontends{
		keys:     map[maps.SvcKey]frontend{},
		watchers: map[maps.SvcKey]map[model.Key]struct{}{},
		touched:  map[maps.SvcKey]struct{}{},
		dirty:    dirty,
	}
}

// bindFrontends completes the keys that contain the index of the service itself.
func bindFrontends(w *lb.Service, index uint32) {
	for i := range w.Frontends {
		w.Frontends[i].Key = maps.OwnedKey(w.Frontends[i].Key, index)
	}
}

// claim enters a service's claim and returns the claim that won.
func (f *frontends) claim(key maps.SvcKey, c claim) claim {
	state := f.keys[key]
	was := state.owner
	switch {
	case was.service == nil:
		state.owner = c
	case was.service == c.service:
		if state.owner = c; c != was { // it may no longer be the best
			state.yield()
		}
	default:
		state.others.remove(c.service)
		if c.before(state.owner) {
			c, state.owner = state.owner, c
		}
		state.others.add(c)
	}
	f.set(key, state, was)
	return state.owner
}

// release withdraws a service's claim.
func (f *frontends) release(key maps.SvcKey, s *service) {
	state, ok := f.keys[key]
	if !ok {
		return
	}
	was := state.owner
	state.others.remove(s)
	if was.service == s {
		state.owner = state.others.best(shared(key))
		state.others.remove(state.owner.service)
	}
	f.set(key, state, was)
}

// yield gives the frontend to another if that has the better claim now.
func (s *frontend) yield() {
	if best := s.others.best(false); best.service != nil && best.before(s.owner) {
		s.others.remove(best.service)
		s.others.add(s.owner)
		s.owner = best
	}
}

// shared reports whether it does not matter which service owns a row: that of a hosted backend, or of
// pings.
func shared(key maps.SvcKey) bool { return maps.IsHosted(key) || maps.IsPing(key) }

// set stores a key's new state. If the owner changed, the winner, the loser and all remaining
// claimants become due, since their problems name the owner. Nobody's name that of a shared row,
// which any number of Services may have: each new one would make all of them due.
func (f *frontends) set(key maps.SvcKey, state frontend, was claim) {
	if !state.present && state.owner.service == nil {
		delete(f.keys, key)
		delete(f.touched, key)
	} else {
		f.keys[key] = state
		if !state.inMaps() {
			f.touched[key] = struct{}{}
		} else {
			delete(f.touched, key)
		}
	}
	if was.service == state.owner.service {
		return
	}
	if was.service != nil && state.owner.service != nil && !shared(key) {
		f.dirty(was.service.object.key, state.owner.service.object.key)
		state.others.each(func(c claim) { f.dirty(c.service.object.key) })
	}
	for pod := range f.watchers[key] {
		f.dirty(pod)
	}
}

func (s *frontend) wanted() (maps.Svc, bool) {
	if s.owner.service == nil {
		return maps.Svc{}, false
	}
	return maps.Svc{Service: s.owner.service.index, Kind: s.owner.kind}, true
}

func (s *frontend) inMaps() bool {
	row, want := s.wanted()
	return want == s.present && (!want || row == s.row)
}

// shadowed returns the NodePort that a host port on one address would shadow, and registers the pod
// to be told when that NodePort comes or goes.
func (f *frontends) shadowed(key maps.SvcKey, kind uint32, pod model.Key) (claim, bool) {
	if kind != maps.HostPort {
		return claim{}, false
	}
	family := model.FamilyOf(maps.NetipOf(key.Addr))
	wildcard := maps.SvcKey{Addr: maps.AddrOf(family.Unspecified()), Port: key.Port, Proto: key.Proto}
	if wildcard == key {
		return claim{}, false // it is the same row: the better claim gets it
	}
	pods := f.watchers[wildcard]
	if pods == nil {
		pods = map[model.Key]struct{}{}
		f.watchers[wildcard] = pods
	}
	pods[pod] = struct{}{}
	owner := f.keys[wildcard].owner
	return owner, owner.service != nil && owner.kind == maps.NodePort
}

// unwatch forgets a pod that is gone.
func (f *frontends) unwatch(pod model.Key) {
	for key, pods := range f.watchers {
		delete(pods, pod)
		if len(pods) == 0 {
			delete(f.watchers, key)
		}
	}
}

// maxTouched is the largest size of the set of touched keys that is kept for reuse.
const maxTouched = 1024

// trim releases the memory that the touched keys of a start took: a map never shrinks.
func (f *frontends) trim() {
	if len(f.touched) == 0 && f.crowded {
		f.touched = map[maps.SvcKey]struct{}{}
		f.crowded = false
	}
}

func conflict(key maps.SvcKey, winner claim) model.Problem {
	return model.Problem{
		Reason: "FrontendConflict",
		Message: fmt.Sprintf("%v/%v belongs to %s, which has the better claim; it is taken over when that one goes",
			maps.AddrPort(key), model.Protocol(key.Proto), winner.service.object.key),
	}
}
