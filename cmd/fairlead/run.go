package main

import (
	"context"
	"errors"
	"fmt"
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
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/nodes"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/pkg/reconcile"
)

// runAgent is the agent from top to bottom: a source fills the store, the reconciler writes the
// store into the maps, and the programs read the maps. It returns when the context ends, and leaves
// the datapath running.
func runAgent(ctx context.Context, cfg *config.Config, level *slog.LevelVar, log *slog.Logger) error {
	facts, err := factsOf(cfg)
	if err != nil {
		return err
	}
	namespaceQuota, err := lb.ParseQuota(cfg.NamespaceQuota)
	if err != nil {
		return fmt.Errorf("option namespace-quota: %w", err)
	}
	rules, err := rulesOf(cfg)
	if err != nil {
		return err
	}
	if err := podnetwork.Check(cfg); err != nil {
		return err
	}
	store := model.NewStore(cfg.NodeName)
	if ranges, fixed := cfg.ServicePrefixes(); fixed {
		store.FixServiceRanges(ranges, len(ranges) == 0)
	}
	packets, err := packetsOf(cfg, store)
	if err != nil {
		return err
	}
	if cfg.Bandwidth == "true" {
		if packets.Pair, err = queues.MakePair(); err != nil {
			return err
		}
		packets.PairEnd = queues.FarName
	}
	bbr := podnetwork.BBRStatus(cfg)
	path, err := datapath.Open(datapath.Config{
		BPFFS: cfg.BPFFS, CgroupRoot: cfg.CgroupRoot, OnDemand: true, Packets: packets, Congestion: podnetwork.ReplacedCongestion(bbr), Log: log,
	})
	if err != nil {
		return err
	}
	defer path.Close()
	if cfg.Bandwidth != "true" {
		if err := path.EndRates(queues.Drain); err != nil {
			log.Warn("cannot drain the packets that wait for the former rates of pods; they may be lost",
				"error", err)
		}
	}
	barrier, err := maps.NewBarrier()
	if err != nil {
		return err
	}
	defer barrier.Close()

	setLocal := func(local *datapath.Local) {
		store.SetLocal(stdmaps.Keys(local.Addrs))
		store.SetBroadcasts(stdmaps.Keys(local.Broadcasts))
	}
	local, err := datapath.NodeAddrs()
	if err != nil {
		return err
	}
	setLocal(local) // before the first compile
	src, around, err := cluster.NewSource(cfg, store, version(), log)
	if err != nil {
		return err
	}
	agent := &agent{cfg: cfg, path: path, bbr: bbr, source: src, store: store, started: time.Now()}
	agent.nodes = nodes.New(path, store, func() ([]netip.Prefix, error) { return podnetwork.CIDRs(cfg, store) }, log)
	if agent.metrics, err = newMetrics(agent); err != nil {
		return err
	}
	notifier := life.NewDegradedNotifier(agent.degraded, postNode(store, around.Events), log)
	agent.policies = cluster.NewPolicyWatch(around, func() string { return store.Self().UID }, log)
	report := reporter(log, around.Events)
	if agent.accelerator, err = agent.newAccelerator(report, log); err != nil {
		return err
	}
	agent.servers = agent.newServers(log)
	agent.hub = agent.newHub(log)
	server, err := api.NewServer(cfg.SocketPath(), api.Handlers{
		Status:   agent.status,
		Config:   func() any { return cfg.Origins() },
		LogLevel: level,
		Problems: agent.problems,
		Verify:   agent.verify,
		Monitor:  agent.monitor,
		Try:      agent.try,
	})
	if err != nil {
		return err
	}

	// Others may use the state directory until the server has its lock.
	var ends func()
	agent.before, ends = life.Begin(cfg.StateDir, log)
	defer ends()
	running := life.NewTasks(ctx)
	defer running.End()
	ctx, start := running.Context(), running.Start
	start("api", server.Serve)
	start("monitor", agent.endMonitors)
	for _, s := range agent.servers {
		start("server", s.Run)
	}
	start("source", src.Run)
	start("notifier", notifier.Run)
	start("policies", agent.policies.Run)
	if !path.Adopted() {
		if err := createMaps(ctx, path, store); err != nil {
			return running.Ended(err)
		}
	}
	// Programs of an earlier agent missed changes that the rangeEpochs must tell them of.
	rangeEpochs, err := path.RangeEpochs()
	if err != nil {
		return err
	}
	// Attach the programs before the first write, because after an interrupted growth this is what
	// makes hooks and pins agree.
	if err := path.Attach(); err != nil {
		return err
	}
	agent.setConnections(start, log)
	checks := agent.newServiceChecks(running.Spawn, log)
	reconciler, err := reconcile.New(reconcile.Config{
		Store:  store,
		Tables: tablesOf(path),
		Facts:  facts,

		NamespaceQuota: namespaceQuota,

		Barrier: barrier.Wait,
		Grow: func(sizes maps.Sizes) (*reconcile.Tables, error) {
			if err := path.Grow(sizes); err != nil {
				return nil, err
			}
			return tablesOf(path), nil
		},
		Prepare:     path.Prepare,
		RangeEpochs: rangeEpochs,
		Report:      report,
		Checked:     agent.checked(checks, report),
		Left: func(protocol model.Protocol) {
			agent.sockets.Left(protocol)
			agent.flows.Left(protocol)
		},
		Meter: agent.metrics,
		Log:   log,
	})
	if err != nil {
		return err
	}
	controller := newOptOutController(cfg, rules, store, path, log)
	agent.setWriters(reconciler, controller)
	if err := agent.startPodNetwork(start, packets.Pair, log); err != nil {
		return err
	}
	start("sockmap", agent.accelerator.Run)
	start("attachment", path.WatchAttachment)
	start("pins", func(ctx context.Context) error { return path.WatchPins(ctx, agent.reportPins(around.Events)) })
	start("nodes", agent.nodes.Run)
	start("devices", func(ctx context.Context) error { return path.Watch(ctx, store.SelfChanged(), setLocal) })
	start("reconcile", func(ctx context.Context) error { return errors.Join(reconciler.Run(ctx), rangeEpochs.Close()) })
	start("optout", controller.Run)
	start("announcement", agent.newAnnouncement(around.Node, log).Run)
	start("sweep", func(ctx context.Context) error { return path.WatchRows(ctx, connections.MostClients(log)) })
	log.Info("running", "node", cfg.NodeName, "source", cfg.Source, "adopted", path.Adopted(), "cgroup", path.CgroupRoot())
	return running.Wait()
}

// createMaps creates the maps of a cold start, as large as the delivered objects need. It waits for
// the sources only for a limited time, so that one that does not sync does not keep the rest from
// being served: maps can grow.
func createMaps(ctx context.Context, path *datapath.Datapath, store *model.Store) error {
	select {
	case <-store.Synced():
	case <-time.After(reconcile.ColdWait):
	case <-ctx.Done():
		return ctx.Err()
	}
	return path.Create(reconcile.Estimate(store))
}

func tablesOf(path *datapath.Datapath) *reconcile.Tables {
	t := path.Tables()
	return &reconcile.Tables{
		Frontends: t.Svcs, Ranges: t.Ranges, Services: t.Services, Slots: t.Slots, Backends: t.Backends, Names: t.Names,
	}
}

func factsOf(cfg *config.Config) (lb.Facts, error) {
	algorithm, err := lb.ParseAlgorithm(cfg.Algorithm)
	if err != nil {
		return lb.Facts{}, fmt.Errorf("option algorithm: %w", err)
	}
	external, err := lb.ParseExternalIPs(cfg.ExternalIPs)
	if err != nil {
		return lb.Facts{}, fmt.Errorf("option external-ips: %w", err)
	}
	direct, err := lb.ParseDirect(cfg.DSR)
	if err != nil {
		return lb.Facts{}, fmt.Errorf("option dsr: %w", err)
	}
	quota, err := lb.ParseQuota(cfg.ServiceQuota)
	if err != nil {
		return lb.Facts{}, fmt.Errorf("option service-quota: %w", err)
	}
	return lb.Facts{
		Quota: quota, Proxies: podnetwork.ProxyNames(cfg), Algorithm: algorithm, ExternalIPs: external, Direct: direct, AcceptDirect: cfg.AcceptsDSR(), VIPPing: cfg.VIPPing == "true",
		NodeExternalIPs: cfg.NodeExternalIPs == "true", NodePorts: cfg.NodePorts(),
		RuntimePorts: cfg.PodNetwork == "main" && cfg.Source == config.Kubernetes,
	}, nil
}
