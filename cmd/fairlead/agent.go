package main

import (
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
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/optout"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/routes"
	"fairlead.io/fairlead/pkg/sockets"
)

// agent is what the API server asks about while runAgent runs.
type agent struct {
	cfg     *config.Config
	path    *datapath.Datapath
	source  source
	store   *model.Store
	started time.Time

	metrics  *metrics.Metrics
	gauge    *observe.Gauge
	servers  []*health.Server
	hub      *monitor.Hub
	policies *policyWatch // nil where objects come from files
	// accelerator is set before others ask.
	accelerator *accelerator

	mu          sync.Mutex
	reconciler  *reconcile.Reconciler // nil until the maps are there
	sweeper     *sockets.Sweeper      // likewise, and where the kernel has no means for it
	cannotSweep bool
	keeper      *optout.Keeper       // likewise
	collector   *conntrack.Collector // likewise
	// cannotCollect says why there is no collector.
	cannotCollect string
	follower      *routes.Follower   // likewise
	cannotFollow  string             // and why there is none
	network       *podnet.Network    // nil where pods get their network otherwise
	fabric        *fabric.Fabric     // likewise
	masquerade    *masquerade.Keeper // nil without such a file

	queues *queues.Keeper     // nil where pods send as fast as they can; likewise
	bbr    *observe.BBRStatus // nil where connections of pods have the congestion control that the kernel gives them; set before others ask
	pair   int                // where what they send to each other waits, by its index; 0 where nothing does
	big    *bigtcp.Keeper     // nil where packets are as large as usual; set before others ask
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

// reporter tells the problems of objects: as an event where there is somebody to post it to, always in the log.
func reporter(log *slog.Logger, events eventSink) func(model.Key, string, model.Problem) {
	return func(key model.Key, uid string, problem model.Problem) {
		log.Warn(problem.Message, "object", key.String(), "reason", problem.Reason)
		if events != nil && key.Namespace != "" { // a pod that the runtime did not name is none of the API server's
			events.Warn(key, uid, problem.Reason, problem.Message)
		}
	}
}

func (a *agent) setWriters(r *reconcile.Reconciler, k *optout.Keeper) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reconciler, a.keeper = r, k
}

func (a *agent) current() *reconcile.Reconciler {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reconciler
}

// problems lists what is wrong with which objects, sorted by object.
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
