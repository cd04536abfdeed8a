package reconcile

import (
	"cmp"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/lb"
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

// objects knows what each object wants, and what is installed for it.
type objects struct {
	store    *model.Store
	compiler *lb.Compiler
	quotas   quotas
	known    map[model.Key]*object
	failed   map[model.Key]struct{} // to be retried
}

// compile returns what an object wants now.
func (o *objects) compile(key model.Key) (wanted *lb.Wanted, uid string, created int64) {
	switch key.Kind {
	case model.KindPod:
		pod, attached := o.store.Pod(key.Name), o.store.Attached(key.Name)
		// The order of claims must not change when the Pod becomes known.
		if len(attached) > 0 && !attached[0].Lost {
			uid, created = attached[0].UID, attached[0].Created
		}
		if pod != nil {
			uid, created = pod.UID, cmp.Or(created, pod.Created)
		}
		return o.compiler.Pod(key.Name, pod, attached), uid, created
	default:
		if svc, endpoints := o.store.Service(key.Name); svc != nil {
			return o.compiler.ServiceWithin(svc, endpoints, o.quotas.room(key)), svc.UID, svc.Created
		}
	}
	return &lb.Wanted{}, "", 0
}

// completeByRuntime reports whether the runtime has said everything that an object wants, so that it
// need not wait for the sources.
func (o *objects) completeByRuntime(key model.Key) bool {
	list := o.store.Attached(key.Name)
	return key.Kind == model.KindPod && len(list) > 0 && !slices.ContainsFunc(list, func(a *model.Attachment) bool { return a.Lost })
}

// bound leaves nothing of an object that its namespace has no room for.
func (o *objects) bound(key model.Key, uid string, created int64, wanted *lb.Wanted) {
	if key.Kind != model.KindService || o.quotas.admit(key, uid, created, wanted.Uses) {
		return
	}
	over := o.quotas.namespaces[key.Namespace].wanted.Exceeds(o.quotas.limit)
	wanted.Services, wanted.Checks, wanted.Uses = nil, nil, lb.Quota{}
	wanted.Problems = append(wanted.Problems, model.Problem{
		Reason: "NamespaceQuotaExceeded",
		Message: "the Service is not served: the Services of its namespace can have " + cmp.Or(over, "no more") +
			" on a node together, and older ones come first; delete some",
	})
}

// allowedBy returns the backends of a service that may keep their connections, or nil if its object is
// gone.
func (o *objects) allowedBy(s *service) *lb.Allowed {
	id := lb.ID{Key: s.object.key, Port: s.port, Protocol: s.protocol, Family: s.family}
	if id.Kind == model.KindPod {
		return o.allowedByPod(id.Name)
	}
	svc, endpoints := o.store.Service(id.Name)
	if svc == nil {
		return nil
	}
	return o.compiler.Allowed(id, endpoints)
}

func (o *objects) allowedByPod(name model.Name) *lb.Allowed {
	pod, attached := o.store.Pod(name), o.store.Attached(name)
	if pod == nil && len(attached) == 0 {
		return nil
	}
	var addrs []netip.Addr
	if pod != nil && len(attached) == 0 {
		addrs = pod.Addrs
	}
	for _, a := range attached {
		addrs = append(addrs, a.Addrs...)
	}
	return lb.AllowedByPod(addrs)
}
