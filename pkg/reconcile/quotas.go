package reconcile

import (
	"cmp"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/model"
)

// quotas decide which Services of a namespace are served if all together want more than their
// share: the older ones, each that still fits. At no time are more served than fit.
type quotas struct {
	limit      lb.Quota
	namespaces map[string]*share
	fullest    [lb.QuotaFields]QuotaUse // as of the last count
	isCounted  bool
}

// QuotaUse is how much of a quota of namespaces the one wants that wants most of it.
type QuotaUse struct {
	Quota     string `json:"quota"` // as in lb.QuotaNames and --namespace-quota
	Namespace string `json:"namespace"`
	Wanted    int    `json:"wanted"` // more than the limit: the youngest of these Services are not served
	Limit     int    `json:"limit"`  // 0: there is none
}

// share is what the Services of one namespace want and have.
type share struct {
	members map[model.Key]*member
	wanted  lb.Quota // by all
	used    lb.Quota // by those that are served
	due     bool     // who is served may have to change
}

type member struct {
	created int64
	uid     string
	wants   lb.Quota
	served  bool
	chosen  bool // as of the last choice: to be served
}

// admit enters what a Service wants now, and reports whether it is served. Wanting nothing takes it
// off the list.
func (q *quotas) admit(key model.Key, uid string, created int64, wants lb.Quota) bool {
	if q.limit == (lb.Quota{}) {
		return true
	}
	s := q.namespaces[key.Namespace]
	if s == nil {
		s = &share{members: map[model.Key]*member{}}
		q.namespaces[key.Namespace] = s
	}
	over := s.wanted.Exceeds(q.limit) != ""
	m := s.members[key]
	if m == nil {
		m = &member{chosen: !over}
		s.members[key] = m
	}
	if m.served {
		s.used = s.used.Less(m.wants)
	}
	q.isCounted = q.isCounted && m.wants == wants
	s.due = s.due || over && (m.wants != wants || m.created != created || m.uid != uid)
	s.wanted = s.wanted.Less(m.wants).Add(wants)
	m.uid, m.created, m.wants = uid, created, wants
	s.due = s.due || s.wanted.Exceeds(q.limit) != "" != over
	fits := s.used.Add(wants).Exceeds(q.limit) == ""
	// One that was chosen and does not fit waits for another that has to go.
	s.due = s.due || m.chosen && !fits
	if m.served = m.chosen && fits; m.served {
		s.used = s.used.Add(wants)
	}
	if wants == (lb.Quota{}) {
		delete(s.members, key)
		if len(s.members) == 0 {
			delete(q.namespaces, key.Namespace)
		}
		return true
	}
	return m.served
}

// room returns what a Service can use that was not chosen to be served, so that little work is done
// for it while it does not fit. The zero value stands for no limit.
func (q *quotas) room(key model.Key) lb.Quota {
	s := q.namespaces[key.Namespace]
	if s == nil {
		return lb.Quota{}
	}
	if m := s.members[key]; m != nil && m.chosen || m == nil && s.wanted.Exceeds(q.limit) == "" {
		return lb.Quota{}
	}
	return s.used.Left(q.limit)
}

// serves reports whether the namespace of an object has room for it.
func (q *quotas) serves(key model.Key) bool {
	s := q.namespaces[key.Namespace]
	if s == nil || key.Kind != model.KindService {
		return true
	}
	m := s.members[key]
	return m == nil || m.served
}

// choose decides anew who is served, where that may have changed, and returns the Services that
// have to be applied again.
func (q *quotas) choose() (changed []model.Key) {
	for _, s := range q.namespaces {
		if !s.due {
			continue
		}
		s.due = false
		var used lb.Quota
		for _, key := range s.byAge() {
			m := s.members[key]
			sum := used.Add(m.wants)
			if m.chosen = sum.Exceeds(q.limit) == ""; m.chosen {
				used = sum
			}
			if m.chosen != m.served {
				changed = append(changed, key)
			}
		}
	}
	return changed
}

// uses returns the namespace that wants most of each quota.
func (q *quotas) uses() [lb.QuotaFields]QuotaUse {
	if q.isCounted {
		return q.fullest
	}
	limits := q.limit.Values()
	for i := range q.fullest {
		q.fullest[i] = QuotaUse{Quota: lb.QuotaNames[i], Limit: limits[i]}
	}
	for name, s := range q.namespaces {
		for i, wanted := range s.wanted.Values() {
			// By name among equals, so that it does not change by itself.
			if most := &q.fullest[i]; wanted > most.Wanted || wanted > 0 && wanted == most.Wanted && name < most.Namespace {
				most.Namespace, most.Wanted = name, wanted
			}
		}
	}
	q.isCounted = true
	return q.fullest
}

func (s *share) byAge() []model.Key {
	keys := make([]model.Key, 0, len(s.members))
	for key := range s.members {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b model.Key) int {
		x, y := s.members[a], s.members[b]
		return cmp.Or(cmp.Compare(x.created, y.created), strings.Compare(x.uid, y.uid), a.Compare(b))
	})
	return keys
}
