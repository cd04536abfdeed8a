package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/agent/acceleration"
	"fairlead.io/fairlead/pkg/agent/cluster"
	"fairlead.io/fairlead/pkg/agent/life"
	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/explain"
	"fairlead.io/fairlead/pkg/health"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/monitor"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/optout"
)

// accelerateOnly is the agent of --mode=accelerate-only. It runs beside whatever serves Services and provides
// the pod network, and attaches only the programs that let connections bypass TCP.
type accelerateOnly struct {
	cfg         *config.Config
	version     string
	level       *slog.LevelVar
	source      cluster.Source
	store       *model.Store
	started     time.Time
	before      life.Starts
	accelerator *acceleration.Accelerator
	annotations *cluster.AnnotationWatch
	metrics     *metrics.Metrics
	servers     []*health.Server
}

// errAlone answers requests for what this agent does not do.
var errAlone = errors.New("this agent runs with --mode=" + config.AccelerateOnly + ": it does not serve Services, and knows nothing about them")

// runAccelerateOnly runs the agent of --mode=accelerate-only. It returns when the context ends;
// connections that bypass TCP continue to.
func runAccelerateOnly(ctx context.Context, command Config) error {
	cfg, log := command.Options, command.Log
	lock, err := datapath.Reserve(cfg.BPFFS)
	if err != nil {
		return err
	}
	defer lock.Close()
	a := &accelerateOnly{cfg: cfg, version: command.Version, level: command.Level, store: model.NewStore(cfg.NodeName), started: time.Now()}
	src, around, err := cluster.NewSource(cfg, a.store, nil, a.version, log)
	if err != nil {
		return err
	}
	a.source = src
	report := reporter(log, around.Events)
	if a.accelerator, err = a.newAccelerator(report, log); err != nil {
		return err
	}
	a.annotations = cluster.NewAnnotationWatch(a.store, report, log)
	a.metrics = metrics.NewAccelerateOnly(command.Build, a.sample)
	a.servers = a.newServers(log)
	server, err := api.NewServer(cfg.SocketPath(), a.handlers())
	if err != nil {
		return err
	}
	var ends func()
	a.before, ends = life.Begin(cfg.StateDir, log)
	defer ends()
	running := life.NewTasks(ctx)
	defer running.End()
	running.Start("api", server.Serve)
	for _, s := range a.servers {
		running.Start("server", s.Run)
	}
	running.Start("source", src.Run)
	running.Start("annotations", a.annotations.Run)
	running.Start("notifier", life.NewDegradedNotifier(a.degraded, postNode(a.store, around.Events), log).Run)
	running.Start("sockmap", a.accelerator.Run)
	log.Info("running", "mode", cfg.Mode, "node", cfg.NodeName, "source", cfg.Source)
	return running.Wait()
}

func (a *accelerateOnly) newAccelerator(report func(model.Key, string, model.Problem), log *slog.Logger) (*acceleration.Accelerator, error) {
	host, err := datapath.HostNetns()
	if err != nil {
		return nil, err
	}
	return acceleration.New(&acceleration.Config{
		Options: a.cfg, Store: a.store, Host: host, Limited: acceleration.Rated, Report: report, Log: log,
		Records: func() *optout.CNI { return newCNI(a.cfg, host, log) },
	})
}

func (a *accelerateOnly) handlers() api.Handlers {
	return api.Handlers{
		Status:   a.status,
		Config:   func() any { return a.cfg.Origins() },
		LogLevel: a.level,
		Problems: a.problems,
		Verify:   func(context.Context, bool) (observe.Verification, error) { return observe.Verification{}, errAlone },
		Monitor:  func(monitor.Filter) (api.Stream, error) { return nil, errAlone },
		Try:      func(explain.TrialQuestion) (explain.Trial, error) { return explain.Trial{}, errAlone },
	}
}

// status returns the state of this node, as far as it concerns this agent.
func (a *accelerateOnly) status() observe.Status {
	s := observe.Status{Version: a.version, Mode: a.cfg.Mode, Node: a.cfg.NodeName, Started: a.started, Agent: a.before.Status(time.Now()), Problems: a.problems()}
	s.Source = cluster.Status(a.source, a.store, a.cfg.Source)
	s.Sockmap = a.accelerator.Status()
	s.FindProblems()
	s.Degraded = append(s.Degraded, faultsOf(a.servers)...)
	return s
}

func (a *accelerateOnly) degraded() []string { return a.status().Degraded }

func (a *accelerateOnly) problems() []model.ObjectProblem {
	return append(a.annotations.Problems(), a.accelerator.Problems()...)
}

func (a *accelerateOnly) sample() metrics.Sample {
	status := a.status()
	s := metrics.Sample{Degraded: len(status.Degraded) > 0, Source: a.source.Sample(), Sockmap: status.Sockmap, Reasons: map[string]int{}}
	for _, p := range status.Problems {
		s.Reasons[p.Reason]++
	}
	return s
}

// newServers returns the servers for the addresses in the configuration.
func (a *accelerateOnly) newServers(log *slog.Logger) []*health.Server {
	return serversOf([]health.ServerConfig{
		{Option: "metrics-address", Address: a.cfg.MetricsAddress, Routes: map[string]http.Handler{"/metrics": a.metrics.Handler()}},
		{Option: "ready-address", Address: a.cfg.ReadyAddress, Routes: map[string]http.Handler{
			"/readyz": health.Ready(a.checks()), "/livez": health.Text("ok"),
		}},
	}, a.metrics.Evicted, log)
}

// checks returns the checks of /readyz.
func (a *accelerateOnly) checks() []health.Check {
	return []health.Check{
		{Name: "source-synced", Run: func() error {
			if missing := a.store.Unsynced(); len(missing) > 0 {
				return fmt.Errorf("missing: %s", strings.Join(missing, ", "))
			}
			return nil
		}},
		{Name: "acceleration", Run: a.accelerator.Ready},
	}
}
