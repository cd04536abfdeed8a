package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	stdmaps "maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/pkg/sysctl"
)

// startQueues starts keeping the queues in which packets of a network's pods wait for their time,
// or restores the queues that an earlier agent replaced. network may be nil.
func (a *agent) startQueues(start func(string, func(context.Context) error), network *podnet.Network, log *slog.Logger) error {
	if a.cfg.Bandwidth != "true" {
		names, err := queues.Restore()
		if len(names) > 0 {
			log.Info("restored the kernel's own queues of devices", "devices", names)
		}
		return err
	}
	load := func() queues.Load {
		if network == nil {
			return queues.Load{}
		}
		stats := network.Stats()
		return queues.Load{All: stats.Waits, One: stats.MostWaits}
	}
	a.queues = queues.New(queues.Config{Devices: a.path.Devices, Pair: a.pair, IsPod: cni.IsDevice, Load: load, Log: log})
	start("queues", a.queues.Run)
	return nil
}

// bandwidthStatus returns the state of pods' rates, or nil with --bandwidth=false.
func (a *agent) bandwidthStatus(pods *podnet.Stats) *observe.BandwidthStatus {
	if a.queues == nil {
		return nil
	}
	s := a.queues.Stats()
	if err := a.path.PairWay(); err != nil {
		s.Error = strings.TrimPrefix(s.Error+"; packets that waited on the node are not delivered: "+err.Error(), "; ")
	}
	status := &observe.BandwidthStatus{
		Devices: s.Devices, Lacking: s.Lacking, Pods: pods.Limited, Dropped: s.Dropped, Congestion: sysctl.CongestionControl(sysctl.Root), Error: s.Error,
	}
	if a.bbr != nil {
		bbr := *a.bbr
		bbr.Pods, status.BBR = pods.BBR, &bbr
	}
	return status
}

func newBandwidthCommand(inv *invocation) *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "List the pods with a rate, and what they send and receive",
		Long: `List the pods of this node that have a rate for what they send (annotation kubernetes.io/egress-bandwidth) or receive
(kubernetes.io/ingress-bandwidth), and the rates that the pods of a namespace or of the node share
(fairlead.io/egress-bandwidth on a Namespace or a Node). For each it shows:

- the rate
- the current throughput, measured for one second
- packets dropped since the rate was set, because they would have waited too long
- packets that told their sender that they had to wait
- the bytes that each sender to the pod was last allowed to have on the way (empty: no limit)
- the congestion control of the pod's new connections, unless a program chooses another

It reads the maps and the agent's files, so it also works while no agent runs.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			rows, err := readLimited(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return inv.print(rows, func(w io.Writer) error { return writeLimited(w, rows) })
		},
	}
	return noun("bandwidth", "Show the rates of pods", list)
}

// limited is a pod, or several, with a rate in one direction. Rates count the bits of whole frames.
type limited struct {
	Pod string `json:"pod,omitempty"`
	// Share says which pods these are: "namespace/" and its name, or "node".
	Share     string `json:"share,omitempty"`
	Device    string `json:"device"`
	Direction string `json:"direction"` // egress or ingress
	Rate      uint64 `json:"rate"`
	Measured  uint64 `json:"measured"`
	Dropped   uint64 `json:"dropped"` // packets
	Marked    uint64 `json:"marked"`  // packets
	// Window is how many bytes each sender to the pod may have on the way; 0 means no limit.
	Window uint64 `json:"window,omitempty"`
	// Congestion is the default congestion control of a pod's new connections; empty for a shared
	// rate.
	Congestion string `json:"congestion,omitempty"`
}

// measuredFor is how long throughput is measured.
const measuredFor = time.Second

func readLimited(ctx context.Context, cfg *config.Config) ([]limited, error) {
	m, err := maps.Open(mapsDir(cfg), true)
	if err != nil {
		return nil, pinsError(cfg, err)
	}
	defer m.Close()
	before, err := readPaces(m)
	if err != nil || len(before.pods)+len(before.shares) == 0 {
		return []limited{}, err
	}
	since := time.Now()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(measuredFor):
	}
	after, err := readPaces(m)
	if err != nil {
		return nil, err
	}
	took := time.Since(since).Seconds()
	records, err := podnet.Registered(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	local, err := maps.PodRows(m.PodLinks, m.Pods)
	if err != nil {
		return nil, err
	}
	rows := []limited{}
	add := func(row limited, now, was *maps.Pace) {
		if now == nil {
			return
		}
		row.Rate, row.Dropped, row.Marked, row.Window = now.Rate*8, now.Dropped, now.Marked, now.Window
		if was != nil && now.Passed >= was.Passed {
			row.Measured = uint64(float64(now.Passed-was.Passed) * 8 / took)
		}
		rows = append(rows, row)
	}
	names, congestion := sharesOf(records), sysctl.CongestionControl(sysctl.Root)
	for _, id := range slices.Sorted(stdmaps.Keys(after.shares)) {
		now, was := after.shares[id], before.shares[id]
		add(limited{Share: names[id], Direction: "egress"}, &now, &was)
	}
	indexes, others, bbr := slices.Sorted(stdmaps.Keys(after.pods)), map[uint32]string{}, map[uint32]bool{}
	// A pod with several devices is listed once, with the first of them.
	isOther := func(index uint32) bool {
		of := after.pods[index].Of
		return of != index && after.pods[of].Of == of
	}
	for _, index := range indexes {
		if isOther(index) {
			device, _ := ownerOf(int(index), records)
			others[after.pods[index].Of] += "," + device
		}
	}
	for i := range local {
		bbr[local[i].Index] = local[i].BBR
	}
	for _, index := range indexes {
		if isOther(index) {
			continue
		}
		now, was := after.pods[index], before.pods[index]
		device, pod := ownerOf(int(index), records)
		device += others[index]
		has := congestion
		if bbr[index] {
			has = "bbr"
		}
		add(limited{Pod: pod, Device: device, Direction: "egress", Congestion: has}, now.Out, was.Out)
		add(limited{Pod: pod, Device: device, Direction: "ingress"}, now.In, was.In)
	}
	return rows, nil
}

// paces is what pods with rates have sent and received.
type paces struct {
	pods   map[uint32]maps.Paced
	shares map[uint64]maps.Pace
}

func readPaces(m *maps.Maps) (p paces, err error) {
	if p.pods, err = maps.Paces(m.PodRates, m.PodPaces); err != nil {
		return p, err
	}
	p.shares, err = maps.SharePaces(m.ShareRates, m.SharePaces)
	return p, err
}

// rateSamples returns what the pods of this node with rates have sent and received. It leaves out
// what cannot be read.
func (a *agent) rateSamples(pods *podnet.Stats) []metrics.Rate {
	if pods == nil || len(pods.Rated) == 0 {
		return nil
	}
	// The datapath may replace its own maps with larger ones meanwhile.
	m, err := maps.Open(mapsDir(a.cfg), true)
	if err != nil {
		return nil
	}
	defer m.Close()
	now, err := readPaces(m)
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
		pod, of := pods.Rated[index], now.pods[index].Of
		if counted[of] { // for another interface of the pod
			continue
		}
		counted[of] = true
		if pod.Name == "" { // its record was lost, and a series without names is the node's
			continue
		}
		add(metrics.RateOf{Namespace: pod.Namespace, Pod: pod.Name, Direction: "egress"}, now.pods[index].Out)
		add(metrics.RateOf{Namespace: pod.Namespace, Pod: pod.Name, Direction: "ingress"}, now.pods[index].In)
	}
	namespaces := map[uint64]string{maps.NodeShare: ""} // a series without a namespace is the node's
	for _, pod := range pods.Rated {
		if pod.Namespace != "" {
			namespaces[maps.ShareOf(pod.Namespace)] = pod.Namespace
		}
	}
	for id, share := range now.shares {
		if namespace, known := namespaces[id]; known {
			add(metrics.RateOf{Namespace: namespace, Direction: "egress"}, &share)
		}
	}
	return slices.Collect(stdmaps.Values(sums))
}

// sharesOf returns the names of the rates that pods may share, by their keys.
func sharesOf(records []podnet.Record) map[uint64]string {
	names := map[uint64]string{maps.NodeShare: "node"}
	for i := range records {
		names[maps.ShareOf(records[i].Pod.Namespace)] = "namespace/" + records[i].Pod.Namespace
	}
	return names
}

// ownerOf returns the name of a device and its pod, each "" if unknown.
func ownerOf(index int, records []podnet.Record) (device, pod string) {
	if at := slices.IndexFunc(records, func(r podnet.Record) bool { return r.Device.Index == index }); at >= 0 {
		return records[at].Device.Name, records[at].Pod.String()
	}
	if link, err := net.InterfaceByIndex(index); err == nil {
		device = link.Name
	}
	return device, ""
}

func writeLimited(w io.Writer, rows []limited) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "POD\tDEVICE\tDIRECTION\tRATE\tMEASURED\tDROPPED\tMARKED\tWINDOW\tCONGESTION")
	for _, r := range rows {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", orNone(cmp.Or(r.Pod, r.Share)), orNone(r.Device), r.Direction, bitRate(r.Rate), bitRate(r.Measured),
			r.Dropped, r.Marked, windowText(r.Window), orNone(r.Congestion))
	}
	return table.Flush()
}

func windowText(bytes uint64) string {
	if bytes == 0 {
		return orNone("")
	}
	return strconv.FormatUint(bytes, 10)
}

// bitRate formats bits a second as annotations do, such as "12.5M".
func bitRate(n uint64) string {
	value, unit := float64(n), ""
	for _, next := range []string{"k", "M", "G", "T"} {
		if value < 1000 {
			break
		}
		value, unit = value/1000, next
	}
	return fmt.Sprintf("%.4g%s", value, unit)
}
