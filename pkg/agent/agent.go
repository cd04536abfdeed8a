// Package agent is the agent of a node: its subsystems, in the order in which they start, and what they say of themselves.
package agent

import (
	"context"
	"log/slog"
	stdmaps "maps"
	"slices"
	"sync/atomic"
	"time"

	"fairlead.io/fairlead/pkg/agent/acceleration"
	"fairlead.io/fairlead/pkg/agent/cluster"
	"fairlead.io/fairlead/pkg/agent/connections"
	"fairlead.io/fairlead/pkg/agent/life"
	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/congestion"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/health"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/nodes"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/optout"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/ticks"
)

// agent is everything that runs, and what the API shows of it.
type agent struct {
	cfg     *config.Config
	version string
	build   metrics.Build
	level   *slog.LevelVar
	log     *slog.Logger
	started time.Time
	parsed  options
	running *life.Tasks
	undone  []func() // what closes something, to be called in reverse order

	store    *model.Store
	source   cluster.Source
	cluster  cluster.API
	policies *cluster.PolicyWatch // nil if objects come from files, or policies are enforced
	enforcer *enforcer            // nil with --policies=off
	report   func(model.Key, string, model.Problem)

	path        *datapath.Datapath
	barrier     *maps.Barrier
	rangeEpochs *ticks.RangeEpochs
	nodes       *nodes.Table
	pair        int                // of devices in which pods' packets to each other wait; 0 with --bandwidth=false
	bbr         *congestion.Status // nil with --bbr=false

	api       *api.Server
	before    life.Starts // agents before this one
	metrics   *metrics.Metrics
	gauge     *mapstats.Reader
	readiness *readiness
	servers   []*health.Server
	monitors  *monitors

	// The fields below are nil until the maps exist, but for the accelerator.
	accelerator *acceleration.Accelerator
	reconciler  atomic.Pointer[reconcile.Reconciler]
	optOuts     atomic.Pointer[optOuts]
	sockets     atomic.Pointer[connections.StaleSockets]
	flows       atomic.Pointer[connections.FlowCollector]
	routes      atomic.Pointer[connections.RouteFollower]
	network     atomic.Pointer[podnetwork.Network]
}

// defers has undo call what closes something, before all that was deferred earlier.
func (a *agent) defers(undo func()) { a.undone = append(a.undone, undo) }

// undo closes what the agent has opened.
func (a *agent) undo() {
	for _, undo := range slices.Backward(a.undone) {
		undo()
	}
}

// reporter returns a function that reports problems of objects: always in the log, and as events if
// there is a cluster to post them to.
func reporter(log *slog.Logger, events cluster.Events) func(model.Key, string, model.Problem) {
	return func(key model.Key, uid string, problem model.Problem) {
		level, post := slog.LevelWarn, cluster.Events.Warn
		if problem.Notice() {
			level, post = slog.LevelInfo, cluster.Events.Notice
		}
		log.Log(context.Background(), level, problem.Message, "object", key.String(), "reason", problem.Reason)
		// The API server does not know a pod that the runtime did not name, nor an option.
		if events != nil && (key.Namespace != "" || key.Kind == model.KindServiceCIDR && uid != "") {
			post(events, key, uid, problem.Reason, problem.Message)
		}
	}
}

// problems lists the problems of objects, sorted by object.
func (a *agent) problems() []model.ObjectProblem {
	r := a.reconciler.Load()
	if r == nil {
		return nil
	}
	found := r.Problems()
	var list []model.ObjectProblem
	for _, key := range slices.SortedFunc(stdmaps.Keys(found), model.Key.Compare) {
		for _, p := range found[key] {
			list = append(list, model.ObjectProblem{Object: key.String(), Problem: p})
		}
	}
	for _, p := range a.store.Self().Problems {
		list = append(list, model.ObjectProblem{Object: "node:" + a.store.Self().Name, Problem: p})
	}
	return slices.Concat(list, a.optOuts.Load().problems(), a.accelerator.Problems())
}

// degraded returns why the node is degraded.
func (a *agent) degraded() []string {
	var status observe.Status
	reading, err := a.measure()
	a.fillMaps(&status, &reading)
	a.complete(&status, err)
	return status.Degraded
}

// NewAnnouncement returns who is told that this node can serve pods.
func (a *agent) newAnnouncement() *life.Announcement {
	var steps []life.Step
	node := a.cluster.Node
	main, written := a.cfg.PodNetwork == "main", a.cfg.CNIConfDir == ""
	if !written {
		// The file stays when the agent ends. Pods that start then wait for the next agent.
		steps = append(steps, life.Step{What: "the container runtime", Due: func() bool { return !written }, Do: func(context.Context) error {
			_, err := podnetwork.ConfigureRuntime(a.cfg)
			written = err == nil
			return err
		}})
	}
	if node != nil && main {
		steps = append(steps, life.Step{What: "readers of the Node's conditions", Due: func() bool { return !a.store.Self().Network }, Do: node.Connect})
	}
	if node != nil { // last, because it lets pods come
		steps = append(steps, life.Step{What: "the scheduler", Due: func() bool { return a.store.Self().Awaiting }, Do: node.Admit})
	}
	return life.NewAnnouncement(a.unready, a.log, steps...)
}

// unready returns why pods cannot be served yet.
func (a *agent) unready() error {
	for _, check := range a.readiness.checks() {
		if err := check.Run(); err != nil {
			return err
		}
	}
	return a.network.Load().Ready()
}

// postNode returns a function that posts events about this node, or nil without a cluster.
func postNode(store *model.Store, events cluster.Events) func(warning bool, reason, message string) bool {
	if events == nil {
		return nil
	}
	return func(warning bool, reason, message string) bool {
		return events.Node(store.Self().UID, warning, reason, message)
	}
}

func (a *agent) newAccelerator() (*acceleration.Accelerator, error) {
	host := a.path.HostNetns()
	return acceleration.New(&acceleration.Config{
		Options: a.cfg, Store: a.store, Host: host, Limited: func(pod *model.Pod) bool { return limited(a.cfg, a.store, pod) }, Judged: a.enforcer.passing(), Own: func() map[cni.Pod]uint64 { return a.network.Load().Cookies() }, Report: a.report, Log: a.log,
		Records: func() *optout.CNI { return newCNI(a.cfg, host, a.log) },
	})
}

// limited reports whether a rate limits what a pod sends or receives, its own or a shared one.
func limited(cfg *config.Config, store *model.Store, pod *model.Pod) bool {
	if cfg.Bandwidth != "true" {
		return cfg.PodNetwork != "main" && acceleration.Rated(pod)
	}
	if acceleration.Rated(pod) || store.Self().Egress != 0 {
		return true
	}
	for _, namespace := range store.Namespaces() {
		if namespace.Name == pod.Namespace {
			return namespace.Egress != 0
		}
	}
	return false
}

// stale asks the reconciler, which knows the backends.
func (a *agent) stale(ctx context.Context, origins []maps.Origin) ([]bool, error) {
	r := a.reconciler.Load()
	if r == nil {
		return make([]bool, len(origins)), nil
	}
	return r.Stale(ctx, origins)
}
