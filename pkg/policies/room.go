package policies

import "fairlead.io/fairlead/pkg/model"

// Room is how many of the flows that policies accepted the node remembers, and for how many it has room. A pod
// gets room for another one only while it has fewer than are free.
type Room struct {
	Flows     int        `json:"flows"`
	Of        int        `json:"of"`
	Most      model.Name `json:"most,omitzero"` // the pod that has the most
	MostFlows int        `json:"mostFlows,omitempty"`
	Full      int        `json:"full,omitempty"` // pods that get no more
}

// Add adds the flows of a pod.
func (r *Room) Add(pod model.Name, flows int) {
	if flows > r.MostFlows {
		r.Most, r.MostFlows = pod, flows
	}
	if flows >= r.Of-r.Flows {
		r.Full++
	}
}

// findings says whose flows find no room.
func (r *Room) findings(say func(string, ...any)) {
	if r == nil || r.Full == 0 {
		return
	}
	say("%d pods have no room for more flows that policies accepted: the node remembers %d of at most %d, and %s alone has %d. Their further flows may be "+
		"pushed out, and are then judged as new ones (flows-full). Have that pod keep fewer open, or spread such pods over more nodes.",
		r.Full, r.Flows, r.Of, r.Most, r.MostFlows)
}
