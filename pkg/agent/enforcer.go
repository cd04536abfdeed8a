package agent

import (
	"context"
	"log/slog"
	"sync"

	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/source"
)

// enforcer has policies enforced. It is nil if nobody wants that.
type enforcer struct {
	*policies.Controller
	maps     func() *maps.Maps // nil until there are any
	auditing sync.Mutex
}

func newEnforcer(cfg *config.Config, store *model.Store, kernel func() *maps.Maps, log *slog.Logger) *enforcer {
	if !cfg.FollowsPolicies() {
		return nil
	}
	controller := policies.New(&policies.Config{Store: store, Node: cfg.NodeName, Mode: cfg.Policies, Quota: policy.DefaultQuota(), Log: log})
	return &enforcer{Controller: controller, maps: kernel}
}

// receiver returns who gets the pods of all nodes.
func (e *enforcer) receiver() source.PodReceiver {
	if e == nil {
		return nil
	}
	return e.Controller
}

// judge returns what the pod network asks, and is told.
func (e *enforcer) judge() podnetwork.Policies {
	if e == nil {
		return nil
	}
	return e.Controller
}

// passing returns what socket acceleration asks.
func (e *enforcer) passing() func(model.Name) (passing, known bool) {
	if e == nil {
		return nil
	}
	return e.Passing
}

// state returns how policies are enforced on pods with these devices, or nil.
func (e *enforcer) state(devices []policies.Device) *policies.Status {
	if e == nil {
		return nil
	}
	status := e.Controller.Status()
	m := e.maps()
	if m == nil {
		return status
	}
	shares, err := m.SharesOfFlows()
	if err != nil { // the maps are just being closed
		return status
	}
	pods := map[model.Name]int{}
	for _, device := range devices {
		pods[device.Pod] += shares.Pods[device.Index]
	}
	status.Room = &policies.Room{Flows: shares.Rows, Of: shares.Of}
	for pod, flows := range pods {
		status.Room.Add(pod, flows)
	}
	return status
}

// verify adds the differences in the rows of policies to a verification.
func (e *enforcer) verify(ctx context.Context, v *observe.Verification) error {
	if e == nil {
		return nil
	}
	checked, err := e.Verify(ctx, v.Repair)
	if checked.Waiting {
		v.Pending++
	}
	for _, d := range checked.Damage {
		v.Found++
		if d.Mended {
			v.Mended++
		}
		v.Differences = append(v.Differences, reconcile.Difference{Kind: d.Map, Where: d.Where, Want: d.Want, Have: d.Have, Mended: d.Mended})
	}
	return err
}

// name puts the number of a rule into words, if it is known.
func (e *enforcer) name(rule uint32) string {
	if e == nil {
		return ""
	}
	return e.Controller.Name(rule)
}

// denials returns what the rules in force denied, as counted in the maps pinned in dir. While these cannot be
// read there are none: the node is then degraded for it.
func (e *enforcer) denials(dir string) (list []metrics.Denial) {
	if e == nil {
		return nil
	}
	counts, err := reasons.ReadDenials(dir)
	if err != nil {
		return nil
	}
	for i := range counts {
		if rule, found := e.Rule(counts[i].Rule); found {
			list = append(list, metrics.Denial{Namespace: rule.Policy.Namespace, Policy: rule.Object(), Direction: counts[i].Direction, Packets: counts[i].Packets})
		}
	}
	return list
}

// api returns who answers questions of the API, or nil.
func (e *enforcer) api() api.Policies {
	if e == nil {
		return nil
	}
	return e
}
