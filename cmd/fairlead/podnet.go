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
	"fairlead.io/fairlead/pkg/sysctl"
)

// startPodNetwork starts assigning addresses to pods and serving the plugin.
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
	// From here on, pods' devices run this agent's programs. Unlike those of an earlier agent, they
	// may no longer make packets wait.
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

// podKind returns the kind of device for new pods. It is veth unless the option says netkit: pods
// on netkit have not been run for long, their ADD takes some milliseconds more, and sandboxes that
// are virtual machines only support veth.
func podKind(cfg *config.Config) cni.Kind {
	if cfg.PodDevice == string(cni.Netkit) {
		return cni.Netkit
	}
	return cni.Veth
}

// hostPorts tells the pod network when host ports lead to their pods. The reconciler writes them,
// like Services.
type hostPorts struct {
	*model.Store
	reconciler *reconcile.Reconciler
}

// portPatience is long enough for a start, when the reconciler waits for sources, and for maps that
// grow.
const portPatience = reconcile.ColdWait + 5*time.Second

// Await returns once the tables have the host ports that the Store has for a pod.
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

// checkPodNetwork rejects options that need another --pod-network. Without it, there would be no
// configuration to write for the runtime, no programs that see the packets for proxies and rates,
// and no device to change. It also rejects a kind of device that the kernel lacks.
func checkPodNetwork(cfg *config.Config) error {
	if cfg.L7Proxies != "" && cfg.PodNetwork != "main" {
		return config.UsageError{Err: fmt.Errorf("--l7-proxies=%s needs --pod-network=main, and it is %s", cfg.L7Proxies, cfg.PodNetwork)}
	}
	if cfg.CNIConfDir != "" && cfg.PodNetwork != "main" {
		return config.UsageError{Err: fmt.Errorf("--cni-conf-dir=%s needs --pod-network=main, and it is %s: after another plugin, add fairlead-cni to that plugin's configuration",
			cfg.CNIConfDir, cfg.PodNetwork)}
	}
	if cfg.PodDevice == string(cni.Netkit) && cfg.PodNetwork != "main" {
		return config.UsageError{Err: fmt.Errorf("--pod-device=netkit needs --pod-network=main, and it is %s: another plugin creates the devices of pods",
			cfg.PodNetwork)}
	}
	if cfg.PodDevice == string(cni.Netkit) {
		if err := podnet.HasNetkit(); err != nil {
			return fmt.Errorf("--pod-device=netkit: %w; use --pod-device=veth instead", err)
		}
	}
	if cfg.BigTCP == "true" && cfg.PodNetwork != "main" {
		return config.UsageError{Err: fmt.Errorf("--big-tcp=true needs --pod-network=main, and it is %s: another plugin creates the devices of pods",
			cfg.PodNetwork)}
	}
	if cfg.Bandwidth == "true" && cfg.PodNetwork == "off" {
		return config.UsageError{Err: errors.New("--bandwidth=true needs --pod-network=main, or chained: without either, the agent does not know the devices of pods")}
	}
	if cfg.BBR != "false" && cfg.PodNetwork != "main" {
		return config.UsageError{Err: fmt.Errorf("--bbr=%s needs --pod-network=main, and it is %s: another plugin decides which way pods' packets take",
			cfg.BBR, cfg.PodNetwork)}
	}
	if cfg.BBR != "false" && cfg.Bandwidth != "true" {
		return config.UsageError{Err: fmt.Errorf("--bbr=%s needs --bandwidth=true, which makes packets wait until the time that their socket set",
			cfg.BBR)}
	}
	return nil
}

// startFabric starts keeping the routes to pods on other nodes.
func (a *agent) startFabric(start func(string, func(context.Context) error), log *slog.Logger) error {
	ways, err := fabric.New(fabric.Config{Mode: a.cfg.Routing, Store: a.store, CIDRs: a.podCIDRs, MTU: podnet.DefaultMTU, Guard: a.guardTunnel, Settled: a.nodes.Settle, Log: log})
	if err != nil {
		return fmt.Errorf("start routing to pods on other nodes: %w", err)
	}
	a.mu.Lock()
	a.fabric = ways
	a.mu.Unlock()
	start("fabric", ways.Run)
	return nil
}

// guardTunnel has the programs drop what comes out of the tunnel with a source that does not belong
// behind the node that sent it. They must know the nodes for that, and be at the tunnel's device.
func (a *agent) guardTunnel() error {
	if err := a.nodes.Write(); err != nil {
		return err
	}
	return a.path.AttachTunnel()
}

// podMTU returns the MTU of pods. If there is a tunnel, their packets must fit into it.
func (a *agent) podMTU() (int, error) {
	mtu, err := podnet.DefaultMTU()
	if a.cfg.PodNetwork == "main" && a.cfg.Routing == fabric.VXLAN {
		mtu -= fabric.Overhead(a.store.Self().Addrs)
	}
	return mtu, err
}

// nativeRetry is the pause after an error.
const nativeRetry = 5 * time.Second

// followNative tells the programs which networks can route pod addresses: those of the cluster, and
// those in the options. Until all nodes are known, what an earlier agent told them stays, because
// pods would otherwise reach each other with their nodes' addresses.
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
			log.Warn("cannot tell the programs which networks route pod addresses, trying again",
				"error", err)
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

// startMasquerade starts following the file of --masquerade-config, if there is one.
func (a *agent) startMasquerade(start func(string, func(context.Context) error), log *slog.Logger) {
	if a.cfg.MasqueradeConfig == "" {
		return
	}
	rules := masquerade.NewKeeper(a.cfg.MasqueradeConfig, a.cfg.StateDir, log)
	a.mu.Lock()
	a.masquerade = rules
	a.mu.Unlock()
	start("masquerade", func(ctx context.Context) error { return file.Follow(ctx, a.cfg.MasqueradeConfig, log, rules.Take) })
}

// masqueradeFile returns the rules of that file, or nil if there is none.
func (a *agent) masqueradeFile() *masquerade.Keeper {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.masquerade
}

// nativeInside returns the networks in the cluster that can route pod addresses. With a tunnel, the
// network between the nodes may not, so other nodes see packets of pods with an address of their
// node; only this node's own addresses are reached without that network. A Node that claims all
// addresses is ignored, because every packet of pods to the outside would otherwise keep its
// address.
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

// noMoves is a count that no Store reaches.
const noMoves = ^uint64(0)

// podCIDRs returns the networks from which pods of this node get their addresses.
func (a *agent) podCIDRs() ([]netip.Prefix, error) {
	if given := a.cfg.PodPrefixes(); len(given) > 0 {
		return given, nil
	}
	self := a.store.Self()
	switch {
	case len(self.PodCIDRs) > 0:
		return self.PodCIDRs, nil
	case self.UID == "":
		return nil, fmt.Errorf("the Node %s is not known yet, or does not exist; --pod-cidrs sets the networks of its pods' addresses",
			a.cfg.NodeName)
	}
	return nil, fmt.Errorf("the Node %s has no podCIDR: run kube-controller-manager with --allocate-node-cidrs and --cluster-cidr, or set "+
		"--pod-cidrs for this agent", a.cfg.NodeName)
}

// poolCIDRs returns the same, once the agent knows which of these addresses have been given to this
// node's pods by another plugin. It does not wait for that if only --pod-cidrs sets the networks,
// because there may be no API server.
func (a *agent) poolCIDRs() ([]netip.Prefix, error) {
	prefixes, err := a.podCIDRs()
	if err == nil && len(a.cfg.PodPrefixes()) == 0 && slices.Contains(a.store.Unsynced(), "pods") {
		return nil, fmt.Errorf("the Pods of the Node %s are not known yet", a.cfg.NodeName)
	}
	return prefixes, err
}

// podStats returns the state of the pod network, or nil with --pod-network=off.
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

// fabricStats returns the state of the routes to other nodes, or nil unless --pod-network=main.
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
		Mode: stats.Mode, Pending: stats.Pending, Nodes: stats.Nodes, Routes: stats.Routes, Refused: stats.Refused, Left: stats.Left, Mended: stats.Mended, Error: stats.Error,
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
	if rules := a.masqueradeFile(); rules != nil {
		native, err := rules.Native()
		s.Masquerade = &observe.MasqueradeStatus{File: a.cfg.MasqueradeConfig, Networks: len(native)}
		if err != nil {
			s.Masquerade.Error = err.Error()
		}
	}
	for i, setting := range sysctl.Forwarding() {
		if ![...]bool{v4, v6}[i] {
			continue
		}
		s.Needed = append(s.Needed, setting.Name+"=1")
		// A setting that cannot be read is not reported as off.
		if off, err := setting.IsOff(sysctl.Root); err == nil && off {
			s.Settings = append(s.Settings, setting.Name)
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
