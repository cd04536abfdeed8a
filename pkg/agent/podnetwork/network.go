// Package podnetwork gives pods their network: addresses, devices, rates, and routes to pods on other nodes.
package podnetwork

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"fairlead.io/fairlead/pkg/agent/life"
	"fairlead.io/fairlead/pkg/bigtcp"
	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/congestion"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/masquerade"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/nodes"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/pkg/source/file"
)

// Config is what the pod network needs. The maps must exist.
type Config struct {
	Options *config.Config
	Path    *datapath.Datapath
	Store   *model.Store
	Nodes   *nodes.Table
	// Await returns once the maps have the host ports of a pod.
	Await func(context.Context, model.Name) error
	// Asked counts the plugin's requests.
	Asked func(verb, outcome string, took time.Duration)
	// Pair is the index of the device pair in which pods' packets to each other wait; 0 with
	// --bandwidth=false.
	Pair int
	BBR  *congestion.Status // nil with --bbr=false
	// Policies is nil with --policies=off.
	Policies Policies
	Log      *slog.Logger
}

// Network assigns addresses to pods, serves the plugin, and looks after the devices, queues and routes that
// pods use.
type Network struct {
	Config
	pods       *podnet.Network      // nil with --pod-network=off
	plugin     *cni.Server          // nil with --pod-network=off
	fabric     *fabric.Fabric       // nil unless --pod-network=main
	masquerade *masquerade.RuleFile // nil without --masquerade-config
	queues     *queues.Controller   // nil with --bandwidth=false
	big        *bigtcp.Controller   // nil with --big-tcp=false
}

// New returns a pod network that serves nobody until it runs.
func New(cfg *Config) (*Network, error) {
	n := &Network{Config: *cfg}
	if err := n.prepareBigTCP(); err != nil {
		return nil, err
	}
	if n.Options.PodNetwork == "off" {
		return n, n.prepareQueues()
	}
	if err := n.preparePods(); err != nil {
		return nil, err
	}
	err := n.prepareMain()
	if err != nil {
		err = errors.Join(err, n.plugin.Close(), n.pods.Close())
	}
	return n, err
}

// preparePods prepares what any plugin needs.
func (n *Network) preparePods() (err error) {
	var programs podnet.Programs
	if n.Options.PodNetwork == "main" || n.Options.Bandwidth == "true" {
		programs = n.Path
	}
	n.pods, err = podnet.New(podnet.Config{
		Programs: programs, Ports: hostPorts{n.Store, n.Await}, Traits: n.traits, Changed: n.Store.TraitsChanged(),
		Dir: n.Options.StateDir, Chained: n.Options.PodNetwork == "chained", CIDRs: n.poolCIDRs, Reserved: n.Store.Local,
		Others: n.Store.PodAddrs,
		MTU:    n.podMTU, Registered: n.registered, Largest: n.largest, Kind: Kind(n.Options), Cooldown: podnet.Cooldown, Meter: n.Asked, Log: n.Log,
	})
	if err != nil {
		return fmt.Errorf("start the pod network: %w", err)
	}
	// From here on, pods' devices run this agent's programs. Unlike those of an earlier agent, they
	// may no longer make packets wait.
	if err := n.prepareQueues(); err != nil {
		return errors.Join(err, n.pods.Close())
	}
	if n.plugin, err = cni.NewServer(PluginSocket(n.Options), n.pods, n.Log); err != nil {
		return errors.Join(err, n.pods.Close())
	}
	return nil
}

// prepareMain prepares what only a network of our own needs: routes, and the file of networks that route pod
// addresses.
func (n *Network) prepareMain() (err error) {
	if n.Options.PodNetwork != "main" {
		return nil
	}
	if n.Options.MasqueradeConfig != "" {
		n.masquerade = masquerade.NewRuleFile(n.Options.MasqueradeConfig, n.Options.StateDir, n.Log)
	}
	n.fabric, err = fabric.New(fabric.Config{
		Mode: n.Options.Routing, Store: n.Store, CIDRs: n.podCIDRs, MTU: podnet.DefaultMTU, Guard: n.guardTunnel, Accepted: n.Nodes.WriteClaims, Log: n.Log,
	})
	if err != nil {
		return fmt.Errorf("start routing to pods on other nodes: %w", err)
	}
	return nil
}

// Run serves pods until the context ends or something fails.
func (n *Network) Run(ctx context.Context) error {
	running := life.NewTasks(ctx)
	defer running.End()
	if n.big != nil {
		running.Start("bigtcp", n.big.Run)
	}
	if n.queues != nil {
		running.Start("queues", n.queues.Run)
	}
	if n.pods != nil {
		running.Start("cni", func(ctx context.Context) error { return errors.Join(n.plugin.Serve(ctx), n.pods.Close()) })
		running.Start("podnet", n.pods.Run)
	}
	if n.masquerade != nil {
		running.Start("masquerade", func(ctx context.Context) error {
			return file.Follow(ctx, n.Options.MasqueradeConfig, n.Log, n.masquerade.Take)
		})
	}
	if n.fabric != nil {
		running.Start("native", n.followNative)
		running.Start("fabric", n.fabric.Run)
	}
	return running.Wait()
}

// Kind returns the kind of device for new pods. It is veth unless the option says netkit: pods
// on netkit have not been run for long, their ADD takes some milliseconds more, and sandboxes that
// are virtual machines only support veth.
func Kind(cfg *config.Config) cni.Kind {
	if cfg.PodDevice == string(cni.Netkit) {
		return cni.Netkit
	}
	return cni.Veth
}

// guardTunnel has the programs drop what comes out of the tunnel with a source that does not belong
// behind the node that sent it. They must know the nodes for that, and be at the tunnel's device.
func (n *Network) guardTunnel() error {
	if err := n.Nodes.Write(); err != nil {
		return err
	}
	return n.Path.AttachTunnel()
}

// podMTU returns the MTU of pods. If there is a tunnel, their packets must fit into it.
func (n *Network) podMTU() (int, error) {
	mtu, err := podnet.DefaultMTU()
	if n.Options.PodNetwork == "main" && n.Options.Routing == fabric.VXLAN {
		mtu -= fabric.Overhead(n.Store.Self().Addrs)
	}
	return mtu, err
}
