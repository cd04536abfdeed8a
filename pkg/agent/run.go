package agent

import (
	"context"
	"errors"
	"log/slog"
	stdmaps "maps"
	"net/netip"
	"time"

	"fairlead.io/fairlead/pkg/agent/cluster"
	"fairlead.io/fairlead/pkg/agent/connections"
	"fairlead.io/fairlead/pkg/agent/life"
	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/enforce"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/nodes"
	"fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/pkg/reconcile"
)

// Config is what a command knows of the agent that it runs.
type Config struct {
	Options *config.Config
	Version string
	Build   metrics.Build
	Level   *slog.LevelVar // of Log, which clients of the API may change
	Log     *slog.Logger
}

// Run runs an agent until the context ends, and leaves the datapath running: a source fills the store, the
// reconciler writes the store into the maps, and the programs read the maps.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Options.AcceleratesOnly() {
		return runAccelerateOnly(ctx, cfg)
	}
	a := &agent{
		cfg: cfg.Options, version: cfg.Version, build: cfg.Build, level: cfg.Level, log: cfg.Log, started: time.Now(), running: life.NewTasks(ctx),
	}
	defer a.undo()
	for _, step := range a.steps() {
		if err := step(); err != nil {
			return a.running.Ended(err)
		}
	}
	a.log.Info("running", "node", a.cfg.NodeName, "source", a.cfg.Source, "adopted", a.path.Adopted(), "cgroup", a.path.CgroupRoot())
	return a.running.Wait()
}

// steps returns what an agent does to start, in this order.
func (a *agent) steps() []func() error {
	return []func() error{
		a.readOptions,
		a.openDatapath,      // takes over the maps and programs of an earlier agent, if there is one
		a.readAddresses,     // before anything is compiled
		a.openSource,        // which delivers nothing yet
		a.prepareStatus,     // metrics, monitors and health checks, which the next step serves
		a.listen,            // the state directory belongs to this agent once it has the API's socket
		a.startServers,      // the API, health checks and metrics
		a.startSource,       // objects arrive, and what concerns the cluster is reported
		a.createMaps,        // unless an earlier agent's were taken over
		a.attach,            // before the first write: after an interrupted growth this makes hooks and pins agree
		a.startConnections,  // aborts stale sockets, removes flows that are over, follows routes
		a.prepareReconciler, // which writes nothing yet
		a.startPodNetwork,   // pods' host ports are rows of the reconciler
		a.startPolicies,     // asks the pod network for devices
		a.startAcceleration, // asks the pod network which pods there are
		a.startDatapath,     // checks of hooks, pins, devices and rows that age
		a.startReconciler,   // from here on objects become rows
	}
}

// readOptions parses what only other packages understand, and makes the store.
func (a *agent) readOptions() error {
	var err error
	if a.parsed, err = parseOptions(a.cfg); err != nil {
		return err
	}
	a.store = model.NewStore(a.cfg.NodeName)
	if ranges, fixed := a.cfg.ServicePrefixes(); fixed {
		a.store.FixServiceRanges(ranges, len(ranges) == 0)
	}
	return nil
}

func (a *agent) openDatapath() error {
	packets, err := packetsOf(a.cfg, a.store)
	if err != nil {
		return err
	}
	if a.cfg.Bandwidth == "true" {
		if packets.Pair, err = queues.MakePair(); err != nil {
			return err
		}
		packets.PairEnd = queues.FarName
	}
	a.pair, a.bbr = packets.Pair, podnetwork.BBRStatus(a.cfg)
	a.path, err = datapath.Open(datapath.Config{
		BPFFS: a.cfg.BPFFS, CgroupRoot: a.cfg.CgroupRoot, OnDemand: true, Packets: packets, Congestion: podnetwork.ReplacedCongestion(a.bbr), Log: a.log,
	})
	if err != nil {
		return err
	}
	a.defers(func() { _ = a.path.Close() })
	if a.cfg.Bandwidth != "true" {
		if err := a.path.EndRates(queues.Drain); err != nil {
			a.log.Warn("cannot drain the packets that wait for the former rates of pods; they may be lost",
				"error", err)
		}
	}
	if a.barrier, err = maps.NewBarrier(); err != nil {
		return err
	}
	a.defers(func() { _ = a.barrier.Close() })
	return nil
}

func (a *agent) readAddresses() error {
	local, err := datapath.NodeAddrs()
	if err != nil {
		return err
	}
	a.setLocal(local)
	return nil
}

func (a *agent) setLocal(local *datapath.Local) {
	a.store.SetLocal(stdmaps.Keys(local.Addrs))
	a.store.SetBroadcasts(stdmaps.Keys(local.Broadcasts))
}

func (a *agent) openSource() (err error) {
	a.enforcer = newEnforcer(a.cfg, a.store, a.path.Maps, a.log)
	if a.source, a.cluster, err = cluster.NewSource(a.cfg, a.store, a.enforcer.receiver(), a.version, a.log); err != nil {
		return err
	}
	a.report = reporter(a.log, a.cluster.Events)
	a.policies = cluster.NewPolicyWatch(a.cluster, func() string { return a.store.Self().UID }, a.log)
	a.nodes = nodes.New(a.path, a.store, func() ([]netip.Prefix, error) { return podnetwork.CIDRs(a.cfg, a.store) }, a.log)
	return nil
}

func (a *agent) prepareStatus() (err error) {
	if err := a.prepareMetrics(); err != nil {
		return err
	}
	if a.accelerator, err = a.newAccelerator(); err != nil {
		return err
	}
	a.readiness = &readiness{cfg: a.cfg, store: a.store, path: a.path, reconciler: a.reconciler.Load, answered: a.metrics.Answered}
	a.servers = a.newServers()
	a.monitors = newMonitors(a.path, a.store, a.enforcer.name, datapath.MapsDir(a.cfg.BPFFS), a.log)
	return nil
}

func (a *agent) listen() (err error) {
	a.api, err = api.NewServer(a.cfg.SocketPath(), api.Handlers{
		Status:   a.status,
		Config:   func() any { return a.cfg.Origins() },
		LogLevel: a.level,
		Problems: a.problems,
		Verify:   a.verify,
		Monitor:  a.monitors.open,
		Try:      a.try,
		Policies: a.enforcer.api(),
	})
	if err != nil {
		return err
	}
	var ends func()
	a.before, ends = life.Begin(a.cfg.StateDir, a.log)
	a.defers(ends)
	return nil
}

func (a *agent) startServers() error {
	a.defers(a.running.End)
	a.running.Start("api", a.api.Serve)
	a.running.Start("monitor", a.monitors.run)
	for _, s := range a.servers {
		a.running.Start("server", s.Run)
	}
	return nil
}

func (a *agent) startSource() error {
	a.running.Start("source", a.source.Run)
	a.running.Start("notifier", life.NewDegradedNotifier(a.degraded, postNode(a.store, a.cluster.Events), a.log).Run)
	a.running.Start("policies", a.policies.Run)
	return nil
}

// createMaps creates the maps of a cold start, as large as the delivered objects need. It waits for
// the sources only for a limited time, so that one that does not sync does not keep the rest from
// being served: maps can grow.
func (a *agent) createMaps() error {
	if a.path.Adopted() {
		return nil
	}
	ctx := a.running.Context()
	select {
	case <-a.store.Synced():
	case <-time.After(reconcile.ColdWait):
	case <-ctx.Done():
		return ctx.Err()
	}
	return a.path.Create(reconcile.Estimate(a.store))
}

func (a *agent) attach() (err error) {
	// Programs of an earlier agent missed changes that the range epochs must tell them of.
	if a.rangeEpochs, err = a.path.RangeEpochs(); err != nil {
		return err
	}
	return a.path.Attach()
}

func (a *agent) startConnections() error {
	cfg := &connections.Config{Options: a.cfg, Path: a.path, Stale: a.stale, Log: a.log}
	connections.MakeRoom(cfg, a.store)
	routes, sockets, flows := connections.NewRouteFollower(cfg), connections.NewStaleSockets(cfg), connections.NewFlowCollector(cfg)
	a.routes.Store(routes)
	a.sockets.Store(sockets)
	a.flows.Store(flows)
	a.running.Start("routes", routes.Run)
	a.running.Start("sockets", sockets.Run)
	a.running.Start("conntrack", flows.Run)
	return nil
}

func (a *agent) prepareReconciler() error {
	reconciler, err := reconcile.New(reconcile.Config{
		Store:  a.store,
		Tables: tablesOf(a.path),
		Facts:  a.parsed.facts,

		NamespaceQuota: a.parsed.namespaceQuota,

		Barrier: a.barrier.Wait,
		Grow: func(sizes maps.Sizes) (*reconcile.Tables, error) {
			if err := a.path.Grow(sizes); err != nil {
				return nil, err
			}
			return tablesOf(a.path), nil
		},
		Prepare:     a.path.Prepare,
		RangeEpochs: a.rangeEpochs,
		Report:      a.report,
		Checked:     a.serviceChecks(),
		Left: func(protocol model.Protocol) {
			a.sockets.Load().Left(protocol)
			a.flows.Load().Left(protocol)
		},
		Meter: a.metrics,
		Log:   a.log,
	})
	if err != nil {
		return err
	}
	a.reconciler.Store(reconciler)
	a.optOuts.Store(newOptOuts(a.cfg, a.parsed.rules, a.store, a.path, a.log))
	return nil
}

func tablesOf(path *datapath.Datapath) *reconcile.Tables {
	t := path.Tables()
	return &reconcile.Tables{
		Frontends: t.Svcs, Ranges: t.Ranges, Services: t.Services, Slots: t.Slots, Backends: t.Backends, Names: t.Names,
	}
}

func (a *agent) startPodNetwork() error {
	network, err := podnetwork.New(&podnetwork.Config{
		Options: a.cfg, Path: a.path, Store: a.store, Nodes: a.nodes, Await: a.reconciler.Load().Await, Asked: a.metrics.Asked,
		Pair: a.pair, BBR: a.bbr, Policies: a.enforcer.judge(), Log: a.log,
	})
	if err != nil {
		return err
	}
	a.network.Store(network)
	a.running.Start("pod network", network.Run)
	return nil
}

// startPolicies writes what policies say about pods to the maps. Before that, those of an agent before
// stay in force.
func (a *agent) startPolicies() error {
	if a.enforcer == nil {
		return nil
	}
	opened, err := a.path.OpenEnforceMaps()
	if err != nil {
		return err
	}
	writer, err := enforce.New(opened, a.cfg.Policies == "audit", a.growPolicies)
	if err != nil {
		return err
	}
	a.defers(func() { _ = writer.Close() })
	a.enforcer.Report = a.report
	around := &policies.Around{
		Writer: writer, Devices: a.network.Load().Devices, NeedPods: a.cluster.NeedPods, PodsError: a.cluster.PodsError, Expel: a.accelerator.Expel, Applied: a.metrics.Enforced,
		Decided: func() error {
			a.accelerator.Wake()
			return a.network.Load().Decide()
		},
	}
	a.running.Start("enforce", func(ctx context.Context) error { return a.enforcer.Run(ctx, around) })
	return nil
}

// growPolicies gives a map of policies more rows, and opens the maps again.
func (a *agent) growPolicies(name string, rows uint32) (*maps.EnforceMaps, error) {
	if grown, err := a.path.GrowPolicies(name, rows); err != nil || !grown {
		return nil, err
	}
	return a.path.OpenEnforceMaps()
}

func (a *agent) startAcceleration() error {
	a.running.Start("sockmap", a.accelerator.Run)
	return nil
}

func (a *agent) startDatapath() error {
	a.running.Start("attachment", a.path.WatchAttachment)
	a.running.Start("pins", func(ctx context.Context) error { return a.path.WatchPins(ctx, reportPins(a.store, a.cluster.Events)) })
	a.running.Start("nodes", a.nodes.Run)
	a.running.Start("devices", func(ctx context.Context) error { return a.path.Watch(ctx, a.store.SelfChanged(), a.setLocal) })
	a.running.Start("sweep", func(ctx context.Context) error { return a.path.WatchRows(ctx, connections.MostClients(a.log)) })
	return nil
}

func (a *agent) startReconciler() error {
	reconciler := a.reconciler.Load()
	a.running.Start("reconcile", func(ctx context.Context) error { return errors.Join(reconciler.Run(ctx), a.rangeEpochs.Close()) })
	a.running.Start("optout", a.optOuts.Load().run)
	a.running.Start("announcement", a.newAnnouncement().Run)
	return nil
}
