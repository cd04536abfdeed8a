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

	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/bigtcp"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/conntrack"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/health"
	"fairlead.io/fairlead/pkg/masquerade"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/monitor"
	"fairlead.io/fairlead/pkg/nodes"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/optout"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/routes"
	"fairlead.io/fairlead/pkg/sockets"
)

// agent holds what the API needs while runAgent runs.
type agent struct {
	cfg     *config.Config
	path    *datapath.Datapath
	source  source
	store   *model.Store
	started time.Time
	before  starts // agents before this one

	nodes    *nodes.Table
	metrics  *metrics.Metrics
	gauge    *observe.Gauge
	servers  []*health.Server
	hub      *monitor.Hub
	policies *policyWatch // nil if objects come from files
	// accelerator is set before other goroutines start.
	accelerator *accelerator

	mu            sync.Mutex
	reconciler    *reconcile.Reconciler // nil until the maps exist
	sweeper       *sockets.Sweeper      // nil until the maps exist, and if cannotSweep
	cannotSweep   bool                  // the kernel cannot abort sockets
	optOut        *optout.Keeper        // nil until the maps exist
	collector     *conntrack.Collector  // nil until the maps exist, and if cannotCollect
	cannotCollect string                // why there is no collector
	follower      *routes.Follower      // nil until the maps exist, and if cannotFollow
	cannotFollow  string                // why there is no follower
	network       *podnet.Network       // nil with --pod-network=off
	fabric        *fabric.Fabric        // nil unless --pod-network=main
	masquerade    *masquerade.Keeper    // nil without --masquerade-config

	// The fields below are set before network, and read only once it is there.
	queues *queues.Keeper     // nil with --bandwidth=false
	bbr    *observe.BBRStatus // nil with --bbr=false
	// pair is the index of the device pair in which pods' packets to each other wait; 0 with
	// --bandwidth=false.
	pair int
	big  *bigtcp.Keeper // nil with --big-tcp=false
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
				return usageError{err}
			}
			level := new(slog.LevelVar)
			at, err := api.ParseLevel(cfg.LogLevel)
			if err != nil {
				return usageError{err}
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
func reporter(log *slog.Logger, events eventSink) func(model.Key, string, model.Problem) {
	return func(key model.Key, uid string, problem model.Problem) {
		level, tell := slog.LevelWarn, eventSink.Warn
		if problem.Notice() {
			level, tell = slog.LevelInfo, eventSink.Notice
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

func (a *agent) current() *reconcile.Reconciler {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reconciler
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
	return slices.Concat(list, a.namespaceProblems(), a.accelerator.problems())
}
