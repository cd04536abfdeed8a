package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/masquerade"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/source/file"
)

// startPodNetwork starts what gives pods their addresses and answers the plugin.
func (a *agent) startPodNetwork(start func(string, func(context.Context) error), log *slog.Logger) error {
	if err := a.startBigTCP(start, log); err != nil {
		return err
	}
	if a.cfg.PodNetwork == "off" {
		return a.startQueues(start, nil, log)
	}
	var programs podnet.Programs
	main := a.cfg.PodNetwork == "main"
	if main || a.cfg.Bandwidth == "true" {
		programs = a.path
	}
	network, err := podnet.New(podnet.Config{
		Programs: programs, Ports: hostPorts{a.store, a.current()}, Traits: a.traits, Changed: a.store.TraitsChanged(),
		Dir: a.cfg.StateDir, Chained: a.cfg.PodNetwork == "chained", CIDRs: a.poolCIDRs, Reserved: a.store.Local,
		Others: a.store.PodAddrs,
		MTU:    a.podMTU, Largest: a.largest, Kind: podKind(a.cfg), Cooldown: podnet.Cooldown, Meter: a.metrics.Asked, Log: log,
	})
	if err != nil {
		return fmt.Errorf("start the pod network: %w", err)
	}
	// From here on pods' devices run the programs of this agent, which may have nothing wait where those of before did.
	if err := a.startQueues(start, network, log); err != nil {
		return errors.Join(err, network.Close())
	}
	server, err := cni.NewServer(pluginSocket(a.cfg), network, log)
	if err != nil {
		return errors.Join(err, network.Close())
	}
	a.mu.Lock()
	a.network = network
	a.mu.Unlock()
	start("cni", func(ctx context.Context) error { return errors.Join(server.Serve(ctx), network.Close()) })
	start("podnet", network.Run)
	if main {
		a.startMasquerade(start, log)
		start("native", func(ctx context.Context) error { return a.followNative(ctx, log) })
		return a.startFabric(start, log)
	}
	return nil
}

// podKind returns what pods' devices are made as. Nobody has run pods at netkits for long, their ADD takes some milliseconds more, and sandboxes that are
// virtual machines know veths alone, so it is chosen only by who says so.
func podKind(cfg *config.Config) cni.Kind {
	if cfg.PodDevice == string(cni.Netkit) {
		return cni.Netkit
	}
	return cni.Veth
}

// hostPorts leads from ports of the node to pods as it does to Services: by the one who writes the tables.
type hostPorts struct {
	*model.Store
	reconciler *reconcile.Reconciler
}

// portPatience is for a start, at which sources are waited for, and for maps that grow.
const portPatience = reconcile.ColdWait + 5*time.Second

// Await returns once what the Store has of a pod's host ports is in the tables.
func (p hostPorts) Await(pod model.Name) error {
	ctx, cancel := context.WithTimeout(context.Background(), portPatience)
	defer cancel()
	err := p.reconciler.Await(ctx, pod)
	var taken *reconcile.TakenError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &taken):
		return cni.Refusal(cni.ErrPortTaken, "%v", err)
	}
	return cni.Refusal(types.ErrTryAgainLater, "the pod's host ports do not lead to it yet: %v", err)
}

// checkPodNetwork refuses what only the pod network gives where pods do not have it: to write a configuration of the runtime that says
// so, proxies for pods whose packets nobody here sees, and to change devices of pods that are others' or make
// what the kernel has none of.
func checkPodNetwork(cfg *config.Config) error {
	if cfg.L7Proxies != "" && cfg.PodNetwork != "main" {
		return usageError{fmt.Errorf("--l7-proxies=%s needs --pod-network=main, and it is %s", cfg.L7Proxies, cfg.PodNetwork)}
	}
	if cfg.CNIConfDir != "" && cfg.PodNetwork != "main" {
		return usageError{fmt.Errorf("--cni-conf-dir=%s needs --pod-network=main, and it is %s: after another plugin fairlead-cni stands in that one's configuration",
			cfg.CNIConfDir, cfg.PodNetwork)}
	}
	if cfg.PodDevice == string(cni.Netkit) && cfg.PodNetwork != "main" {
		return usageError{fmt.Errorf("--pod-device=netkit needs --pod-network=main, and it is %s: the devices of pods are others'", cfg.PodNetwork)}
	}
	if cfg.PodDevice == string(cni.Netkit) {
		if err := podnet.HasNetkit(); err != nil {
			return fmt.Errorf("--pod-device=netkit: %w; --pod-device=veth does without", err)
		}
	}
	if cfg.BigTCP == "true" && cfg.PodNetwork != "main" {
		return usageError{fmt.Errorf("--big-tcp=true needs --pod-network=main, and it is %s: the devices of pods are others'", cfg.PodNetwork)}
	}
	if cfg.Bandwidth == "true" && cfg.PodNetwork == "off" {
		return usageError{errors.New("--bandwidth=true needs --pod-network=main, or chained: without either nobody tells which devices are those of pods")}
	}
	if cfg.BBR != "false" && cfg.PodNetwork != "main" {
		return usageError{fmt.Errorf("--bbr=%s needs --pod-network=main, and it is %s: which way pods' packets take is another's", cfg.BBR, cfg.PodNetwork)}
	}
	if cfg.BBR != "false" && cfg.Bandwidth != "true" {
		return usageError{fmt.Errorf("--bbr=%s needs --bandwidth=true, which has packets wait until the time that their socket has given them", cfg.BBR)}
	}
	return nil
}

// startFabric starts what leads to the pods of other nodes.
func (a *agent) startFabric(start func(string, func(context.Context) error), log *slog.Logger) error {
	ways, err := fabric.New(fabric.Config{Mode: a.cfg.Routing, Store: a.store, CIDRs: a.podCIDRs, MTU: podnet.DefaultMTU, Log: log})
	if err != nil {
		return fmt.Errorf("start leading to the pods of other nodes: %w", err)
	}
	a.mu.Lock()
	a.fabric = ways
	a.mu.Unlock()
	start("fabric", ways.Run)
	return nil
}

// podMTU returns that of pods, whose packets have to fit into a tunnel where there is one.
func (a *agent) podMTU() (int, error) {
	mtu, err := podnet.DefaultMTU()
	if a.cfg.PodNetwork == "main" && a.cfg.Routing == fabric.VXLAN {
		mtu -= fabric.Overhead(a.store.Self().Addrs)
	}
	return mtu, err
}

// nativeRetry is how long it waits after an error.
const nativeRetry = 5 * time.Second

// followNative tells the programs where pods are known: in the cluster, and where the options say so. What an agent before
// has told them holds until all nodes are known, or pods would meet each other under their nodes' addresses.
func (a *agent) followNative(ctx context.Context, log *slog.Logger) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.store.Synced():
	}
	configured := func() []netip.Prefix { return nil }
	changed := (<-chan struct{})(nil)
	if file := a.masqueradeFile(); file != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-file.Ready():
		}
		configured = func() []netip.Prefix { list, _ := file.Native(); return list }
		changed = file.Changed()
	}
	for {
		err := a.path.SetNative(slices.Concat(a.nativeInside(), a.cfg.PodPrefixes(), a.cfg.NativePrefixes(), configured()))
		retry := (<-chan time.Time)(nil)
		if err != nil {
			log.Warn("telling the programs where pods are known: trying again", "error", err)
			retry = time.After(nativeRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-retry:
		case <-a.store.InsideChanged():
		case <-changed:
		}
	}
}

// startMasquerade starts what follows the file of more networks that know pods, if there is one.
func (a *agent) startMasquerade(start func(string, func(context.Context) error), log *slog.Logger) {
	if a.cfg.MasqueradeConfig == "" {
		return
	}
	keeper := masquerade.NewKeeper(a.cfg.MasqueradeConfig, a.cfg.StateDir, log)
	a.mu.Lock()
	a.masquerade = keeper
	a.mu.Unlock()
	start("masquerade", func(ctx context.Context) error { return file.Follow(ctx, a.cfg.MasqueradeConfig, log, keeper.Take) })
}

// masqueradeFile returns what follows that file; nil without one.
func (a *agent) masqueradeFile() *masquerade.Keeper {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.masquerade
}

// nativeInside returns what in the cluster knows pods. With a tunnel the network between the nodes need not, so the nodes
// themselves meet them under an address of theirs; only this node's own are reached without the network. A Node that claims
// all there is would take every pod its way to the outside, and is not believed.
func (a *agent) nativeInside() []netip.Prefix {
	if a.cfg.Routing != fabric.VXLAN {
		inside, _ := a.store.Inside(noMoves)
		return slices.DeleteFunc(inside, fabric.TooWide)
	}
	self := a.store.Self()
	list := slices.Clone(self.PodCIDRs)
	for _, addr := range self.Addrs {
		list = append(list, netip.PrefixFrom(addr, addr.BitLen()))
	}
	for _, node := range a.store.Others() {
		list = append(list, node.PodCIDRs...)
	}
	return slices.DeleteFunc(list, fabric.TooWide)
}

// noMoves is never what a Store has counted.
const noMoves = ^uint64(0)

// podCIDRs returns where the pods of this node get their addresses from.
func (a *agent) podCIDRs() ([]netip.Prefix, error) {
	if given := a.cfg.PodPrefixes(); len(given) > 0 {
		return given, nil
	}
	self := a.store.Self()
	switch {
	case len(self.PodCIDRs) > 0:
		return self.PodCIDRs, nil
	case self.UID == "":
		return nil, fmt.Errorf("the Node %s is not known yet, or there is none; --pod-cidrs says where its pods get their addresses from", a.cfg.NodeName)
	}
	return nil, fmt.Errorf("the Node %s has no podCIDR: run kube-controller-manager with --allocate-node-cidrs and --cluster-cidr, or give this agent "+
		"--pod-cidrs", a.cfg.NodeName)
}

// poolCIDRs returns the same once it is known which addresses of them pods of this node have that another plugin gave a network to.
// Who has given the networks alone may have no API server to tell.
func (a *agent) poolCIDRs() ([]netip.Prefix, error) {
	prefixes, err := a.podCIDRs()
	if err == nil && len(a.cfg.PodPrefixes()) == 0 && slices.Contains(a.store.Unsynced(), "pods") {
		return nil, fmt.Errorf("the Pods of the Node %s are not known yet", a.cfg.NodeName)
	}
	return prefixes, err
}

// podStats returns how the pod network is doing; nil where pods get theirs otherwise.
func (a *agent) podStats() *podnet.Stats {
	a.mu.Lock()
	network := a.network
	a.mu.Unlock()
	if network == nil {
		return nil
	}
	stats := network.Stats()
	return &stats
}

// fabricStats returns how the ways to other nodes' pods are doing; nil where nobody here keeps them.
func (a *agent) fabricStats() *fabric.Stats {
	a.mu.Lock()
	ways := a.fabric
	a.mu.Unlock()
	if ways == nil {
		return nil
	}
	stats := ways.Stats()
	return &stats
}

func (a *agent) routingStatus() *observe.RoutingStatus {
	stats := a.fabricStats()
	if stats == nil {
		return nil
	}
	return &observe.RoutingStatus{
		Mode: stats.Mode, Nodes: stats.Nodes, Routes: stats.Routes, Refused: stats.Refused, Left: stats.Left, Mended: stats.Mended, Error: stats.Error,
	}
}

func (a *agent) podStatus() *observe.PodNetworkStatus {
	stats := a.podStats()
	if stats == nil {
		return nil
	}
	s := &observe.PodNetworkStatus{
		Mode: a.cfg.PodNetwork, Pods: stats.Pods, Netkits: stats.Netkits, Unchecked: stats.Unchecked, Reclaimed: stats.Reclaimed, Mended: stats.Mended, Error: stats.Error,
		Adopted: stats.Adopted, Unknown: stats.Unknown, Addresses: map[string]observe.AddressCount{},
	}
	for family, count := range stats.Families {
		s.Addresses[family] = observe.AddressCount(count)
	}
	v4, v6 := false, false
	for _, prefix := range stats.CIDRs {
		s.CIDRs = append(s.CIDRs, prefix.String())
		v4, v6 = v4 || prefix.Addr().Is4(), v6 || prefix.Addr().Is6()
	}
	s.Routing, s.BigTCP, s.Bandwidth = a.routingStatus(), a.bigStatus(), a.bandwidthStatus(stats)
	a.addProxies(s, stats.Proxied)
	if keeper := a.masqueradeFile(); keeper != nil {
		native, err := keeper.Native()
		s.Masquerade = &observe.MasqueradeStatus{File: a.cfg.MasqueradeConfig, Networks: len(native)}
		if err != nil {
			s.Masquerade.Error = err.Error()
		}
	}
	for i, setting := range forwarding() {
		if ![...]bool{v4, v6}[i] {
			continue
		}
		s.Needed = append(s.Needed, setting.name+"=1")
		// What cannot be read is not known to be wrong.
		if off, err := setting.isOff(procSys); err == nil && off {
			s.Settings = append(s.Settings, setting.name)
		}
	}
	if a.cfg.PodNetwork == "main" {
		s.Device = string(podKind(a.cfg))
		for _, setting := range podnet.Settings() {
			s.Needed = append(s.Needed, fmt.Sprintf("net.%s.conf.DEVICE.%s=%s", setting.Family, setting.Key, setting.Value))
		}
	}
	return s
}
