package observe

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"fairlead.io/fairlead/pkg/lb"
)

// DumpNames lists the maps that Dump can show.
func DumpNames() []string {
	return []string{"svcs", "services", "slots", "backends", "names", "src_ranges", "optout", "pods", "masq_skip", "cluster_nodes", "node_sources", "counters"}
}

// Dump writes the rows of one map as text, sorted, with indexes and what they stand for. It leaves
// out unused rows.
func Dump(w io.Writer, s *Snapshot, mapName string) error {
	dump, ok := map[string]func(io.Writer, *Snapshot){
		"svcs": dumpSvcs, "services": dumpServices, "slots": dumpSlots, "backends": dumpBackends, "names": dumpNames,
		"src_ranges": dumpRanges,
		"optout":     dumpOptout, "pods": dumpPods, "masq_skip": dumpNative, "cluster_nodes": dumpClusterNodes, "node_sources": dumpNodeSources, "counters": dumpCounters,
	}[mapName]
	if !ok {
		return fmt.Errorf("dump map %q: unknown map; use one of %s", mapName, strings.Join(DumpNames(), ", "))
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	dump(table, s)
	return table.Flush()
}

func dumpSvcs(w io.Writer, s *Snapshot) {
	type row struct {
		Frontend
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

func byIndex(s *Snapshot) []Service {
	return slices.SortedFunc(slices.Values(s.Services), func(a, b Service) int { return cmp.Compare(a.Index, b.Index) })
}

func dumpServices(w io.Writer, s *Snapshot) {
	fmt.Fprintln(w, "INDEX\tSERVICE\tALGORITHM\tAFFINITY\tALL\tLOCAL\tFLAGS")
	for _, service := range byIndex(s) {
		fmt.Fprintf(w, "%d\t%s\t%s\t%ds\t%s\t%s\t%s\n", service.Index, service.Label(), service.Algorithm,
			service.AffinitySeconds, wordText(&service.All), wordText(&service.Local),
			cmp.Or(strings.Join(service.Flags, ","), "-"))
	}
}

// wordText shows a word: offset and number of its slots, and their tag.
func wordText(scope *Scope) string {
	if scope.Length == 0 {
		return "-"
	}
	return fmt.Sprintf("%d+%d#%d%s", scope.Offset, scope.Length, scope.Tag, doubt(scope))
}

func doubt(scope *Scope) string {
	switch {
	case scope.Changing:
		return " (changing)"
	case scope.Damage != "":
		return " (damaged: " + scope.Damage + ")"
	}
	return ""
}

func dumpSlots(w io.Writer, s *Snapshot) {
	type extent struct {
		NamedScope
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

func dumpBackends(w io.Writer, s *Snapshot) {
	rows := slices.SortedFunc(slices.Values(s.Backends), func(a, b Backend) int { return cmp.Compare(a.Index, b.Index) })
	fmt.Fprintln(w, "INDEX\tBACKEND\tNODE\tSERVICE")
	for _, b := range rows {
		node := "another"
		if b.Local {
			node = "this"
		}
		fmt.Fprintf(w, "%d\t%s/%s\t%s\t%s\n", b.Index, b.Address, b.Protocol, node, cmp.Or(b.Service, "(free)"))
	}
}

func dumpNames(w io.Writer, s *Snapshot) {
	fmt.Fprintln(w, "INDEX\tNAME")
	for _, service := range byIndex(s) {
		if service.Name != "" {
			fmt.Fprintf(w, "%d\t%s\n", service.Index, service.Name)
		}
	}
}

func dumpCounters(w io.Writer, s *Snapshot) {
	fmt.Fprintln(w, "HOOK\tREASON\tPACKETS\tBYTES")
	for _, c := range s.Counters {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\n", c.Hook, c.Reason, c.Packets, c.Bytes)
	}
}

// DumpAll writes what the tables mean and nothing of their layout: no index, offset or tag. Two
// sets of tables that serve every connection alike have the same dump, so the dump depends on the
// objects alone.
func DumpAll(w io.Writer, s *Snapshot) error {
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

// WriteService writes one service in the form of DumpAll.
func (s *Snapshot) WriteService(w io.Writer, service *Service) error {
	var out strings.Builder
	words := append([]string{service.Label(), service.Algorithm.String()}, service.Flags...)
	if service.AffinitySeconds > 0 {
		words = append(words, fmt.Sprintf("affinity=%ds", service.AffinitySeconds))
	}
	fmt.Fprintln(&out, strings.Join(words, " "))
	for _, f := range service.Frontends {
		fmt.Fprintf(&out, "  frontend %s %s\n", f.Text(), f.Kind)
	}
	if service.Has(flagSourceRanges) {
		fmt.Fprintf(&out, "  sources %s\n", rangesText(service))
	}
	if service.UsesAll() {
		fmt.Fprintf(&out, "  all   %s\n", s.scopeText(service, &service.All))
	}
	if service.UsesLocal() {
		fmt.Fprintf(&out, "  local %s\n", s.scopeText(service, &service.Local))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// Text returns the address in the form used for dialing. A star stands for the node's own
// addresses.
func (f Frontend) Text() string {
	if f.Address.Addr().IsUnspecified() {
		return fmt.Sprintf("*:%d", f.Address.Port())
	}
	return f.Address.String()
}

// scopeText lists the backends, and marks the local and the terminating ones. If some have more
// slots than others, it adds the number of slots of each, and a digest of the order if that
// matters.
func (s *Snapshot) scopeText(service *Service, scope *Scope) string {
	switch {
	case scope.Changing:
		return "(changing)"
	case scope.Damage != "":
		return "(damaged)"
	case scope.Length == 0:
		return "none"
	}
	counted := scope.Length != len(scope.Backends)
	var words []string
	for _, share := range scope.Backends {
		word := share.Address.String()
		if share.Local {
			word += "(local)"
		}
		if share.Terminating {
			word += "(terminating)"
		}
		if counted {
			word = fmt.Sprintf("%s*%d", word, share.Slots)
		}
		words = append(words, word)
	}
	if counted && service.Algorithm != lb.Random {
		words = append(words, "order="+s.order(scope))
	}
	return strings.Join(words, " ")
}
