package main

import (
	"context"
	"log/slog"
	"maps"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"fairlead.io/fairlead/pkg/agent/acceleration"
	"fairlead.io/fairlead/pkg/agent/cluster"
	"fairlead.io/fairlead/pkg/agent/connections"
	"fairlead.io/fairlead/pkg/agent/life"
	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/health"
	rows "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/monitor"
	"fairlead.io/fairlead/pkg/nodes"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/optout"
	"fairlead.io/fairlead/pkg/reconcile"
)

// agent holds what the API needs while runAgent runs.
type agent struct {
	cfg     *config.Config
	path    *datapath.Datapath
	source  cluster.Source
	store   *model.Store
	started time.Time
	before  life.Starts // agents before this one

	nodes    *nodes.Table
	metrics  *metrics.Metrics
	gauge    *observe.Gauge
	servers  []*health.Server
	hub      *monitor.Hub
	policies *cluster.PolicyWatch // nil if objects come from files
	// accelerator is set before other goroutines start.
	accelerator *acceleration.Accelerator

	mu         sync.Mutex
	reconciler *reconcile.Reconciler      // nil until the maps exist
	optOut     *optout.Keeper             // nil until the maps exist
	sockets    *connections.StaleSockets  // nil until the maps exist
	flows      *connections.FlowCollector // nil until the maps exist
	routes     *connections.RouteFollower // nil until the maps exist
	network    *podnetwork.Network        // nil until the maps exist

	bbr *observe.BBRStatus // nil with --bbr=false
}

func newAgentCommand(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run this node's agent",
		Long: `Run this node's agent. It watches Services and EndpointSlices, keeps the maps up to date, and attaches the programs that
read the maps. On SIGTERM the agent exits and the datapath keeps working with what it has; the next agent takes it over.
"fairlead cleanup" removes the datapath.

With --mode=accelerate-only the agent does none of that. It runs beside kube-proxy and another pod network, does not
watch Services, and only lets connections within the node bypass TCP, for the selected pods.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(cmd.Flags(), env.Environ)
			if err != nil {
				return config.UsageError{Err: err}
			}
			level := new(slog.LevelVar)
			at, err := api.ParseLevel(cfg.LogLevel)
			if err != nil {
				return config.UsageError{Err: err}
			}
			level.Set(at)
			options := &slog.HandlerOptions{Level: level}
			var handler slog.Handler = slog.NewTextHandler(env.Stderr, options)
			if cfg.LogFormat == "json" {
				handler = slog.NewJSONHandler(env.Stderr, options)
			}
			log := slog.New(handler)
			klog.SetSlogLogger(log)
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			if cfg.AcceleratesOnly() {
				return runAccelerateOnly(ctx, cfg, level, log)
			}
			return runAgent(ctx, cfg, level, log)
		},
	}
	config.AddFlags(cmd.Flags())
	return cmd
}

// reporter returns a function that reports problems of objects: always in the log, and as events if
// there is a cluster to post them to.
func reporter(log *slog.Logger, events cluster.Events) func(model.Key, string, model.Problem) {
	return func(key model.Key, uid string, problem model.Problem) {
		level, tell := slog.LevelWarn, cluster.Events.Warn
		if problem.Notice() {
			level, tell = slog.LevelInfo, cluster.Events.Notice
		}
		log.Log(context.Background(), level, problem.Message, "object", key.String(), "reason", problem.Reason)
		// The API server does not know a pod that the runtime did not name, nor an option.
		if events != nil && (key.Namespace != "" || key.Kind == model.KindServiceCIDR && uid != "") {
			tell(events, key, uid, problem.Reason, problem.Message)
		}
	}
}

func (a *agent) setWriters(r *reconcile.Reconciler, k *optout.Keeper) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reconciler, a.optOut = r, k
}

// startPodNetwork starts the pod network, which may use rows of the reconciler from then on.
func (a *agent) startPodNetwork(start func(string, func(context.Context) error), pair int, log *slog.Logger) error {
	network, err := podnetwork.New(&podnetwork.Config{
		Options: a.cfg, Path: a.path, Store: a.store, Nodes: a.nodes, Await: a.current().Await, Asked: a.metrics.Asked, Pair: pair, BBR: a.bbr, Log: log,
	})
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.network = network
	a.mu.Unlock()
	start("pod network", network.Run)
	return nil
}

func (a *agent) current() *reconcile.Reconciler {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reconciler
}

// setConnections starts what looks after connections, once the maps exist.
func (a *agent) setConnections(start func(string, func(context.Context) error), log *slog.Logger) {
	cfg := &connections.Config{Options: a.cfg, Path: a.path, Stale: a.stale, Log: log}
	connections.MakeRoom(cfg, a.store)
	routes, sockets, flows := connections.NewRouteFollower(cfg), connections.NewStaleSockets(cfg), connections.NewFlowCollector(cfg)
	a.mu.Lock()
	a.routes, a.sockets, a.flows = routes, sockets, flows
	a.mu.Unlock()
	start("routes", routes.Run)
	start("sockets", sockets.Run)
	start("conntrack", flows.Run)
}

// connections returns what looks after connections: nil until the maps exist.
func (a *agent) connections() (*connections.RouteFollower, *connections.StaleSockets, *connections.FlowCollector) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.routes, a.sockets, a.flows
}

// stale asks the reconciler, which knows the backends.
func (a *agent) stale(ctx context.Context, peers []rows.Peer) ([]bool, error) {
	r := a.current()
	if r == nil {
		return make([]bool, len(peers)), nil
	}
	return r.Stale(ctx, peers)
}

// problems lists the problems of objects, sorted by object.
func (a *agent) problems() []observe.Problem {
	r := a.current()
	if r == nil {
		return nil
	}
	found := r.Problems()
	var list []observe.Problem
	for _, key := range slices.SortedFunc(maps.Keys(found), model.Key.Compare) {
		for _, p := range found[key] {
			list = append(list, observe.Problem{Object: key.String(), Reason: p.Reason, Message: p.Message})
		}
	}
	for _, p := range a.store.Self().Problems {
		list = append(list, observe.Problem{Object: "node:" + a.store.Self().Name, Reason: p.Reason, Message: p.Message})
	}
	return slices.Concat(list, a.namespaceProblems(), a.accelerator.Problems())
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
func (a *agent) newAnnouncement(node cluster.NodeObject, log *slog.Logger) *life.Announcement {
	var steps []life.Step
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
	return life.NewAnnouncement(a.unready, log, steps...)
}

// unready returns why pods cannot be served yet.
func (a *agent) unready() error {
	for _, check := range a.checks() {
		if err := check.Run(); err != nil {
			return err
		}
	}
	return a.podNetwork().Ready()
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

func (a *agent) newAccelerator(report func(model.Key, string, model.Problem), log *slog.Logger) (*acceleration.Accelerator, error) {
	host := a.path.HostNetns()
	return acceleration.New(&acceleration.Config{
		Options: a.cfg, Store: a.store, Host: host, Limited: a.limited, Own: a.cookies, Report: report, Log: log,
		Records: func() *optout.CNI { return newCNI(a.cfg, host, log) },
	})
}

// Network returns the pod network, or nil until the maps exist.
func (a *agent) podNetwork() *podnetwork.Network {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.network
}

// cookies returns the network namespace cookies of the pods that the plugin has set up.
func (a *agent) cookies() map[cni.Pod]uint64 { return a.podNetwork().Cookies() }

// limited reports whether a rate limits what a pod sends or receives, its own or a shared one.
func (a *agent) limited(pod *model.Pod) bool {
	if a.cfg.Bandwidth != "true" {
		return a.cfg.PodNetwork != "main" && acceleration.Rated(pod)
	}
	if acceleration.Rated(pod) || a.store.Self().Egress != 0 {
		return true
	}
	for _, namespace := range a.store.Namespaces() {
		if namespace.Name == pod.Namespace {
			return namespace.Egress != 0
		}
	}
	return false
}
