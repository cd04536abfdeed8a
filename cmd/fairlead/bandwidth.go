package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	stdmaps "maps"
	"net"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/sysctl"
)

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
	before, err := podnetwork.ReadPaces(m)
	if err != nil || len(before.Pods)+len(before.Shares) == 0 {
		return []limited{}, err
	}
	since := time.Now()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(measuredFor):
	}
	after, err := podnetwork.ReadPaces(m)
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
	for _, id := range slices.Sorted(stdmaps.Keys(after.Shares)) {
		now, was := after.Shares[id], before.Shares[id]
		add(limited{Share: names[id], Direction: "egress"}, &now, &was)
	}
	indexes, others, bbr := slices.Sorted(stdmaps.Keys(after.Pods)), map[uint32]string{}, map[uint32]bool{}
	// A pod with several devices is listed once, with the first of them.
	isOther := func(index uint32) bool {
		of := after.Pods[index].Of
		return of != index && after.Pods[of].Of == of
	}
	for _, index := range indexes {
		if isOther(index) {
			device, _ := ownerOf(int(index), records)
			others[after.Pods[index].Of] += "," + device
		}
	}
	for i := range local {
		bbr[local[i].Index] = local[i].BBR
	}
	for _, index := range indexes {
		if isOther(index) {
			continue
		}
		now, was := after.Pods[index], before.Pods[index]
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
