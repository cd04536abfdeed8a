package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/render"
	"fairlead.io/fairlead/pkg/snapshot"
)

func newMapCommand(inv *invocation) *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "List the maps: what they hold, what writes and reads them, how full they are",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, pinned, err := inv.pins(cmd)
			if err != nil {
				return err
			}
			return inv.print(pinned.Maps, func(w io.Writer) error { return mapstats.WriteTable(w, pinned.Maps) })
		},
	}
	dump := &cobra.Command{
		Use:   "dump NAME",
		Short: "Print the rows of a map",
		Long: `Print the rows of a map that are in use, with their indexes and what these stand for. With -o json or yaml, the rows of
services, slots and names are combined into one list of services.`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), dumpable),
		ValidArgs: render.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, pinned, err := inv.pins(cmd)
			if err != nil {
				return err
			}
			return inv.print(rowsOf(pinned.Snapshot, args[0]), func(w io.Writer) error {
				return render.Map(w, pinned.Snapshot, args[0])
			})
		},
	}
	return noun("map", "Show the BPF maps", list, dump)
}

func dumpable(_ *cobra.Command, args []string) error {
	if slices.Contains(render.Names(), args[0]) {
		return nil
	}
	return fmt.Errorf("cannot dump map %q: use one of %s", args[0],
		strings.Join(render.Names(), ", "))
}

// rowsOf returns the part of a snapshot that the rows of a map make up.
func rowsOf(s *snapshot.Snapshot, mapName string) any {
	switch mapName {
	case "svcs":
		frontends := slices.Clone(s.Dangling)
		for _, service := range s.Services {
			frontends = append(frontends, service.Frontends...)
		}
		return frontends
	case "backends":
		return s.Backends
	case "counters":
		return s.Counters
	case "src_ranges":
		return s.Ranges()
	case "optout":
		return s.Optouts
	case "pods":
		return s.Pods
	case "masq_skip":
		return s.Native
	case "cluster_nodes":
		return s.ClusterNodes()
	case "node_sources":
		return s.NodeSources()
	}
	return s.Services
}
