package podnetwork

import (
	stdmaps "maps"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/pkg/sysctl"
)

// prepareQueues prepares the queues in which packets of the pods wait for their time, or restores the
// queues that an earlier agent replaced.
func (n *Network) prepareQueues() error {
	if n.Options.Bandwidth != "true" {
		names, err := queues.Restore()
		if len(names) > 0 {
			n.Log.Info("restored the kernel's own queues of devices", "devices", names)
		}
		return err
	}
	load := func() queues.Load {
		if n.pods == nil {
			return queues.Load{}
		}
		stats := n.pods.Stats()
		return queues.Load{All: stats.Waits, One: stats.MostWaits}
	}
	n.queues = queues.New(queues.Config{Devices: n.Path.Devices, Pair: n.Pair, IsPod: cni.IsDevice, Load: load, Log: n.Log})
	return nil
}

// bandwidthStatus returns the state of pods' rates, or nil with --bandwidth=false.
func (n *Network) bandwidthStatus(pods *podnet.Stats) *queues.Status {
	if n.queues == nil {
		return nil
	}
	status := n.queues.Status()
	if err := n.Path.PairWay(); err != nil {
		status.Error = strings.TrimPrefix(status.Error+"; packets that waited on the node are not delivered: "+err.Error(), "; ")
	}
	status.Pods, status.Congestion = pods.Limited, sysctl.CongestionControl(sysctl.Root)
	if n.BBR != nil {
		bbr := *n.BBR
		bbr.Pods, status.BBR = pods.BBR, &bbr
	}
	return &status
}

// Paces is what pods with rates have sent and received.
type Paces struct {
	Pods   map[uint32]maps.Paced
	Shares map[uint64]maps.Pace
}

// ReadPaces reads what pods with rates have sent and received.
func ReadPaces(m *maps.Maps) (p Paces, err error) {
	if p.Pods, err = maps.Paces(m.PodRates, m.PodPaces); err != nil {
		return p, err
	}
	p.Shares, err = maps.SharePaces(m.ShareRates, m.SharePaces)
	return p, err
}

// RateSamples returns what the pods of this node with rates have sent and received, by the maps that are pinned
// in dir. It leaves out what cannot be read.
func RateSamples(dir string, pods *podnet.Stats) []metrics.Rate {
	if pods == nil || len(pods.Rated) == 0 {
		return nil
	}
	// The datapath may replace its own maps with larger ones meanwhile.
	m, err := maps.Open(dir, true)
	if err != nil {
		return nil
	}
	defer m.Close()
	now, err := ReadPaces(m)
	if err != nil {
		return nil
	}
	sums := map[metrics.RateOf]metrics.Rate{}
	add := func(of metrics.RateOf, p *maps.Pace) {
		if p != nil { // a former pod may still exist beside a new one of the same name
			sum := sums[of]
			sums[of] = metrics.Rate{
				RateOf: of, Limit: sum.Limit + p.Rate, Passed: sum.Passed + p.Passed, Dropped: sum.Dropped + p.Dropped, Marked: sum.Marked + p.Marked,
			}
		}
	}
	counted := map[uint32]bool{}
	for _, index := range slices.Sorted(stdmaps.Keys(pods.Rated)) {
		pod, of := pods.Rated[index], now.Pods[index].Of
		if counted[of] { // for another interface of the pod
			continue
		}
		counted[of] = true
		if pod.Name == "" { // its record was lost, and a series without names is the node's
			continue
		}
		add(metrics.RateOf{Namespace: pod.Namespace, Pod: pod.Name, Direction: "egress"}, now.Pods[index].Out)
		add(metrics.RateOf{Namespace: pod.Namespace, Pod: pod.Name, Direction: "ingress"}, now.Pods[index].In)
	}
	namespaces := map[uint64]string{maps.NodeShare: ""} // a series without a namespace is the node's
	for _, pod := range pods.Rated {
		if pod.Namespace != "" {
			namespaces[maps.ShareOf(pod.Namespace)] = pod.Namespace
		}
	}
	for id, share := range now.Shares {
		if namespace, known := namespaces[id]; known {
			add(metrics.RateOf{Namespace: namespace, Direction: "egress"}, &share)
		}
	}
	return slices.Collect(stdmaps.Values(sums))
}
