package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/podnet"
)

// startPodNetwork starts what gives pods their addresses and answers the plugin.
func (a *agent) startPodNetwork(start func(string, func(context.Context) error), log *slog.Logger) error {
	if a.cfg.PodNetwork == "off" {
		return nil
	}
	var programs podnet.Programs
	if a.cfg.PodNetwork == "main" {
		programs = a.path
	}
	network, err := podnet.New(podnet.Config{
		Programs: programs,
		Dir:      a.cfg.StateDir, Chained: a.cfg.PodNetwork == "chained", CIDRs: a.podCIDRs, Reserved: a.store.Local,
		MTU: podnet.DefaultMTU, Cooldown: podnet.Cooldown, Meter: a.metrics.Asked, Log: log,
	})
	if err != nil {
		return fmt.Errorf("start the pod network: %w", err)
	}
	server, err := cni.NewServer(filepath.Join(a.cfg.StateDir, cni.SocketName), network, log)
	if err != nil {
		return errors.Join(err, network.Close())
	}
	a.mu.Lock()
	a.network = network
	a.mu.Unlock()
	start("cni", func(ctx context.Context) error { return errors.Join(server.Serve(ctx), network.Close()) })
	start("podnet", network.Run)
	if programs != nil {
		start("native", func(ctx context.Context) error { return a.followNative(ctx, log) })
	}
	return nil
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
	for {
		inside, _ := a.store.Inside(noMoves)
		err := a.path.SetNative(slices.Concat(inside, a.cfg.PodPrefixes(), a.cfg.NativePrefixes()))
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
		}
	}
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

func (a *agent) podStatus() *observe.PodNetworkStatus {
	stats := a.podStats()
	if stats == nil {
		return nil
	}
	s := &observe.PodNetworkStatus{
		Mode: a.cfg.PodNetwork, Pods: stats.Pods, Reclaimed: stats.Reclaimed, Mended: stats.Mended, Error: stats.Error,
		Addresses: map[string]observe.AddressCount{},
	}
	for family, count := range stats.Families {
		s.Addresses[family] = observe.AddressCount(count)
	}
	v4, v6 := false, false
	for _, prefix := range stats.CIDRs {
		s.CIDRs = append(s.CIDRs, prefix.String())
		v4, v6 = v4 || prefix.Addr().Is4(), v6 || prefix.Addr().Is6()
	}
	for i, setting := range forwarding() {
		// What cannot be read is not known to be wrong.
		if off, err := setting.isOff(procSys); err == nil && off && [...]bool{v4, v6}[i] {
			s.Settings = append(s.Settings, setting.name)
		}
	}
	return s
}
