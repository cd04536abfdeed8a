// Package render writes what a snapshot contains as text.
package render

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"fairlead.io/fairlead/pkg/snapshot"
)

// Names lists the maps that Dump can show.
func Names() []string {
	return []string{"svcs", "services", "slots", "backends", "names", "src_ranges", "optout", "pods", "masq_skip", "cluster_nodes", "node_sources", "counters"}
}

// Map writes the rows of one map as text, sorted, with indexes and what they stand for. It leaves
// out unused rows.
func Map(w io.Writer, s *snapshot.Snapshot, mapName string) error {
	dump, ok := map[string]func(io.Writer, *snapshot.Snapshot){
		"svcs": dumpSvcs, "services": dumpServices, "slots": dumpSlots, "backends": dumpBackends, "names": dumpNames,
		"src_ranges": dumpRanges,
		"optout":     dumpOptout, "pods": dumpPods, "masq_skip": dumpNative, "cluster_nodes": dumpClusterNodes, "node_sources": dumpNodeSources, "counters": dumpCounters,
	}[mapName]
	if !ok {
		return fmt.Errorf("dump map %q: unknown map; use one of %s", mapName, strings.Join(Names(), ", "))
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	dump(table, s)
	return table.Flush()
}

func dumpSvcs(w io.Writer, s *snapshot.Snapshot) {
	type row struct {
		snapshot.Frontend
		name string
	}
	var rows []row
	for i := range s.Services {
		for _, f := range s.Services[i].Frontends {
			rows = append(rows, row{f, s.Services[i].Label()})
		}
	}
	for _, f := range s.Dangling {
		rows = append(rows, row{f, "(dangling)"})
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(a.Address.Compare(b.Address), strings.Compare(a.Protocol, b.Protocol))
	})
	fmt.Fprintln(w, "FRONTEND\tKIND\tINDEX\tSERVICE")
	for _, r := range rows {
		fmt.Fprintf(w, "%s/%s\t%s\t%d\t%s\n", r.Address, r.Protocol, r.Kind, r.Service, r.name)
	}
}

func byIndex(s *snapshot.Snapshot) []snapshot.Service {
	return slices.SortedFunc(slices.Values(s.Services), func(a, b snapshot.Service) int { return cmp.Compare(a.Index, b.Index) })
}

func dumpServices(w io.Writer, s *snapshot.Snapshot) {
	fmt.Fprintln(w, "INDEX\tSERVICE\tALGORITHM\tAFFINITY\tALL\tLOCAL\tFLAGS")
	for _, service := range byIndex(s) {
		fmt.Fprintf(w, "%d\t%s\t%s\t%ds\t%s\t%s\t%s\n", service.Index, service.Label(), service.Algorithm,
			service.AffinitySeconds, wordText(&service.All), wordText(&service.Local),
			cmp.Or(strings.Join(service.Flags, ","), "-"))
	}
}

// wordText shows a word: offset and number of its slots, and their tag.
func wordText(scope *snapshot.Scope) string {
	if scope.Length == 0 {
		return "-"
	}
	return fmt.Sprintf("%d+%d#%d%s", scope.Offset, scope.Length, scope.Tag, doubt(scope))
}

func doubt(scope *snapshot.Scope) string {
	switch {
	case scope.Changing:
		return " (changing)"
	case scope.Damage != "":
		return " (damaged: " + scope.Damage + ")"
	}
	return ""
}

func dumpSlots(w io.Writer, s *snapshot.Snapshot) {
	type extent struct {
		snapshot.NamedScope
		service string
	}
	var extents []extent
	for i := range s.Services {
		for _, scope := range s.Services[i].Scopes() {
			if scope.Length > 0 {
				extents = append(extents, extent{scope, s.Services[i].Label()})
			}
		}
	}
	slices.SortFunc(extents, func(a, b extent) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), strings.Compare(a.service, b.service))
	})
	fmt.Fprintln(w, "SLOT\tTAG\tBACKEND\tADDRESS\tSERVICE\tSCOPE")
	for _, e := range extents {
		addresses := map[uint32]netip.AddrPort{}
		for _, share := range e.Backends {
			addresses[share.Backend] = share.Address
		}
		for i, backend := range e.Slots {
			fmt.Fprintf(w, "%d\t%d\t%d\t%s\t%s\t%s\n",
				int(e.Offset)+i, e.Tag, backend, addresses[backend], e.service, e.Name)
		}
		if why := doubt(e.Scope); why != "" {
			fmt.Fprintf(w, "%d\t%d\t-\t-\t%s\t%s%s\n", int(e.Offset)+len(e.Slots), e.Tag, e.service, e.Name, why)
		}
	}
}

func dumpBackends(w io.Writer, s *snapshot.Snapshot) {
	rows := slices.SortedFunc(slices.Values(s.Backends), func(a, b snapshot.Backend) int { return cmp.Compare(a.Index, b.Index) })
	fmt.Fprintln(w, "INDEX\tBACKEND\tNODE\tSERVICE")
	for _, b := range rows {
		node := "another"
		if b.Local {
			node = "this"
		}
		fmt.Fprintf(w, "%d\t%s/%s\t%s\t%s\n", b.Index, b.Address, b.Protocol, node, cmp.Or(b.Service, "(free)"))
	}
}

func dumpNames(w io.Writer, s *snapshot.Snapshot) {
	fmt.Fprintln(w, "INDEX\tNAME")
	for _, service := range byIndex(s) {
		if service.Name != "" {
			fmt.Fprintf(w, "%d\t%s\n", service.Index, service.Name)
		}
	}
}

func dumpCounters(w io.Writer, s *snapshot.Snapshot) {
	fmt.Fprintln(w, "HOOK\tREASON\tPACKETS\tBYTES")
	for _, c := range s.Counters {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\n", c.Hook, c.Reason, c.Packets, c.Bytes)
	}
}

// All writes what the tables mean and nothing of their layout: no index, offset or tag. Two
// sets of tables that serve every connection alike have the same dump, so the dump depends on the
// objects alone.
func All(w io.Writer, s *snapshot.Snapshot) error {
	out := bufio.NewWriter(w)
	for i := range s.Services {
		if err := s.WriteService(out, &s.Services[i]); err != nil {
			return err
		}
	}
	for _, f := range s.Dangling {
		fmt.Fprintf(out, "dangling frontend %s %s\n", f.Text(), f.Kind)
	}
	return out.Flush()
}
