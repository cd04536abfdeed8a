package maps

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
)

// ErrIncompatible is wrapped by the error that Open returns for a pin that isn't the map it should
// be.
var ErrIncompatible = errors.New("incompatible pin")

// Maps is the set of all maps. The fields are named like the maps; All lists them.
type Maps struct {
	addrMaps
	rateMaps
	PolicyMaps
	Svcs         *ebpf.Map
	Services     *ebpf.Map
	Slots        *ebpf.Map
	Backends     *ebpf.Map
	Names        *ebpf.Map
	SrcRanges    *ebpf.Map
	Affinity     *ebpf.Map
	ConnOrigins  *ebpf.Map
	SockOrigins  *ebpf.Map
	SockBackends *ebpf.Map
	Ct           *ebpf.Map
	CtPending    *ebpf.Map
	CtOpened     *ebpf.Map
	FibCache     *ebpf.Map
	LruStats     *ebpf.Map
	Counters     *ebpf.Map

	Frags, Allowances                 *ebpf.Map
	EarlySlots, EarlyFrames           *ebpf.Map
	EarlyMarks                        *ebpf.Map
	EarlyTally                        *ebpf.Map
	Optout, OptoutKinds               *ebpf.Map
	RouteEpoch, DsrHints, RangeEpochs *ebpf.Map
	NatDevices, DeviceMacs            *ebpf.Map
	Pods, PodLinks                    *ebpf.Map
	PacketClients, MasqSkip           *ebpf.Map
	ClusterNodes                      *ebpf.Map
	NodeSources                       *ebpf.Map
	Tunnel                            *ebpf.Map
	ConntrackImport                   *ebpf.Map

	Watch, Watched, Events *ebpf.Map

	readOnly bool
	room     Room      // for maps that create makes
	layouts  *ebpf.Map // layouts of the maps, by id; nil in a set that was opened read-only and has none
	older    []older   // maps of another version that maps of this set replace
}

// layoutsPin is the name under which the map of layouts is pinned, beside the maps.
const layoutsPin = "layouts"

// Info describes one map, for listing, pinning and dumping.
type Info struct {
	Name      string
	Map       *ebpf.Map // nil if the Maps is not open
	Row       string    // key and value, for people
	WrittenBy string
	ReadBy    string
	Grows     bool
}

// field is one entry of the list from which everything else is derived.
type field struct {
	Info
	at   **ebpf.Map
	size func(Sizes) uint32 // nil if Sizes does not say it
}

// byPrograms reports whether programs insert rows, so that growing the map takes more than a copy.
func (f field) byPrograms() bool { return f.Name == "ct" }

func (m *Maps) fields() []field {
	services := func(s Sizes) uint32 { return s.Services }
	list := []field{
		{Info{Name: "svcs", Row: "address, port, proto -> service index, kind", WrittenBy: "reconcile", ReadBy: "sock, tc, xdp, pod"},
			&m.Svcs, func(s Sizes) uint32 { return s.Svcs }},
		{Info{Name: "services", Row: "index -> word per scope, algorithm, affinity, flags, turn",
			WrittenBy: "reconcile, sock, tc, xdp, pod (turn)", ReadBy: "sock, tc, xdp, pod"}, &m.Services, services},
		{Info{Name: "slots", Row: "index -> backend index, service index, tag", WrittenBy: "reconcile", ReadBy: "sock, tc, xdp, pod"},
			&m.Slots, func(s Sizes) uint32 { return s.Slots }},
		{Info{Name: "backends", Row: "index -> address, port, proto, flags, service, scopes", WrittenBy: "reconcile", ReadBy: "sock, tc, xdp, pod"},
			&m.Backends, func(s Sizes) uint32 { return s.Backends }},
		{Info{Name: "names", Row: "service index -> name", WrittenBy: "reconcile", ReadBy: "monitor, snapshot"}, &m.Names, services},
		{Info{Name: "src_ranges", Row: "service index, prefix -> bits of the prefix", WrittenBy: "reconcile", ReadBy: "sock, tc, xdp, pod"},
			&m.SrcRanges, nil},
		{Info{Name: "node_addrs", Row: "address -> interface, whether NodePorts are open", WrittenBy: "datapath", ReadBy: "sock, tc, xdp, pod"},
			&m.NodeAddrs, nil},
		{Info{Name: "snat_addrs", Row: "family, or that and the tunnel -> what backends on other nodes see as the client", WrittenBy: "datapath", ReadBy: "sock, tc, xdp, pod"},
			&m.SnatAddrs, nil},
		{Info{Name: "affinity", Row: "client, service index -> backend index, last new connection",
			WrittenBy: "sock, tc, xdp, pod", ReadBy: "sock, tc, xdp, pod"},
			&m.Affinity, nil},
		{Info{Name: "conn_origins", Row: "index -> socket cookie, what it dialed, what it got", WrittenBy: "sock", ReadBy: "sock, sockets"},
			&m.ConnOrigins, nil},
		{Info{Name: "sock_origins", Row: "socket -> what it dialed, what it got", WrittenBy: "sock", ReadBy: "sock, sockets"},
			&m.SockOrigins, nil},
		{Info{Name: "sock_backends", Row: "socket -> up to 32 services that it sends to, their backends", WrittenBy: "sock", ReadBy: "sock"},
			&m.SockBackends, nil},
		{Info{Name: "optout", Row: "network namespace or cgroup -> pod, why", WrittenBy: "optout", ReadBy: "sock"}, &m.Optout, nil},
		{Info{Name: "optout_kinds", Row: "0 -> kinds of optout's rows", WrittenBy: "optout", ReadBy: "sock"}, &m.OptoutKinds, nil},
		{Info{Name: "ct", Row: "flow -> its rewrite and route, last seen, state", WrittenBy: "tc, xdp, pod, conntrack", ReadBy: "tc, xdp, pod, conntrack"},
			&m.Ct, func(s Sizes) uint32 { return s.Flows }},
		{Info{Name: "ct_pending", Row: "flow that is not established -> the same", WrittenBy: "tc, xdp, pod, conntrack", ReadBy: "tc, xdp, pod, conntrack"}, &m.CtPending, nil},
		{Info{Name: "ct_opened", Row: "0 -> flows that were established, ever", WrittenBy: "tc, xdp, pod", ReadBy: "conntrack"}, &m.CtOpened, nil},
		{Info{Name: "lru_stats", Row: "map that pushes rows out -> rows made, rows deleted, ever", WrittenBy: "sock, tc, xdp, pod, conntrack", ReadBy: "mapstats, datapath"},
			&m.LruStats, nil},
		{Info{Name: "route_epoch", Row: "0 -> when ways changed, until when that is followed", WrittenBy: "ticks", ReadBy: "tc, xdp, pod"}, &m.RouteEpoch, nil},
		{Info{Name: "range_epochs", Row: "0 -> when it changed who may use load balancers' addresses", WrittenBy: "ticks", ReadBy: "tc, xdp, pod"},
			&m.RangeEpochs, nil},
		{Info{Name: "fib_cache", Row: "hash of addresses -> the way between them, when the kernel was asked", WrittenBy: "tc, xdp, pod",
			ReadBy: "tc, xdp, pod"}, &m.FibCache, nil},
		{Info{Name: "frags", Row: "datagram -> its ports, last seen", WrittenBy: "tc, xdp, pod", ReadBy: "tc, xdp, pod"}, &m.Frags, nil},
		{Info{Name: "early_slots", Row: "row of early_frames -> its datagram, device, when it came", WrittenBy: "tc", ReadBy: "tc"}, &m.EarlySlots, nil},
		{Info{Name: "early_frames", Row: "row of late -> a fragment that came before its first", WrittenBy: "tc", ReadBy: "tc"}, &m.EarlyFrames, nil},
		{Info{Name: "early_marks", Row: "hash of a datagram -> whether fragments wait for its first", WrittenBy: "tc, xdp", ReadBy: "tc, xdp"},
			&m.EarlyMarks, nil},
		{Info{Name: "early_tally", Row: "0 -> fragments kept, given back and lost, ever", WrittenBy: "tc", ReadBy: "tc, mapstats"}, &m.EarlyTally, nil},
		{Info{Name: "dsr_hints", Row: "0 -> the backend that another node chose for the packet at hand", WrittenBy: "tc", ReadBy: "tc, xdp"},
			&m.DsrHints, nil},
		{Info{Name: "nat_devices", Row: "interface -> 1, if what leaves there is translated", WrittenBy: "datapath", ReadBy: "tc, pod"}, &m.NatDevices, nil},
		{Info{Name: "tunnel", Row: "0 -> interface that leads to the pods of other nodes", WrittenBy: "datapath", ReadBy: "tc, xdp, pod"}, &m.Tunnel, nil},
		{Info{Name: "conntrack_import", Row: "0 -> the tick until which the stack may have connections of before", WrittenBy: "datapath", ReadBy: "tc, xdp, pod"}, &m.ConntrackImport, nil},
		{Info{Name: "device_macs", Row: "interface -> its hardware address", WrittenBy: "datapath", ReadBy: "xdp"}, &m.DeviceMacs, nil},
		{Info{Name: "pods", Row: "address -> interface, both hardware addresses, proxy, whether it has BBR", WrittenBy: "podnet", ReadBy: "sock, tc, xdp, pod"}, &m.Pods, nil},
		{Info{Name: "packet_clients", Row: "0 -> who has sent packets to a service: a pod, the node", WrittenBy: "tc, pod", ReadBy: "tc, pod"}, &m.PacketClients, nil},
		{Info{Name: "masq_skip", Row: "prefix -> 1, if pods are known there", WrittenBy: "podnet", ReadBy: "tc, pod"}, &m.MasqSkip, nil},
		{Info{Name: "cluster_nodes", Row: "address -> hash of its node's name, the node's number, whether it is this one", WrittenBy: "nodes", ReadBy: "nodes, tc, xdp, pod"},
			&m.ClusterNodes, nil},
		{Info{Name: "node_sources", Row: "prefix -> the same, of the node that such sources belong behind", WrittenBy: "nodes", ReadBy: "nodes, tc, xdp, pod"},
			&m.NodeSources, nil},
		{Info{Name: "pod_links", Row: "interface -> hardware address of its pod, flags, proxy", WrittenBy: "podnet", ReadBy: "pod"}, &m.PodLinks, nil},
		{Info{Name: "pod_rates", Row: "interface -> bytes a second that its pod may send and get, what it shares, class", WrittenBy: "podnet", ReadBy: "tc, pod"},
			&m.PodRates, nil},
		{Info{Name: "pod_paces", Row: "interface, direction -> when the next may leave, bytes, packets dropped and marked, what senders may have on the way, average size", WrittenBy: "podnet, tc, pod", ReadBy: "tc, pod, podnetwork"},
			&m.PodPaces, nil},
		{Info{Name: "share_rates", Row: "pods of a namespace, or all -> bytes a second that they may send together", WrittenBy: "podnet", ReadBy: "pod, podnetwork"},
			&m.ShareRates, nil},
		{Info{Name: "share_paces", Row: "the same -> when their next packet may leave, bytes, packets dropped, average size", WrittenBy: "podnet, pod", ReadBy: "pod, podnetwork"},
			&m.SharePaces, nil},
		{Info{Name: "allowances", Row: "0 -> ICMP errors that may be sent, since when", WrittenBy: "tc, xdp, pod", ReadBy: "tc, xdp, pod"},
			&m.Allowances, nil},
		{Info{Name: "watch", Row: "0 -> what monitors want to be told, until when", WrittenBy: "monitor", ReadBy: "tc, xdp, pod"}, &m.Watch, nil},
		{Info{Name: "watched", Row: "kind -> events that may be told, events lost", WrittenBy: "tc, xdp, pod", ReadBy: "tc, xdp, pod, monitor"},
			&m.Watched, nil},
		{Info{Name: "events", Row: "drops, and choices of a backend", WrittenBy: "tc, xdp, pod", ReadBy: "monitor"}, &m.Events, nil},
		{Info{Name: "counters", Row: "hook, reason -> packets, bytes", WrittenBy: "sock, tc, xdp, pod", ReadBy: "mapstats"},
			&m.Counters, nil},
	}
	list = append(list, m.PolicyMaps.fields()...)
	for i := range list {
		list[i].Map = *list[i].at
		list[i].Grows = list[i].size != nil || policyRows(list[i].Name) > 0
	}
	return list
}

// All lists the maps in reading order: those along a connection's way first, then the rest.
func (m *Maps) All() []Info {
	var all []Info
	for _, f := range m.fields() {
		all = append(all, f.Info)
	}
	return all
}

// Create creates unpinned maps of at least the given sizes. The caller must close them.
func Create(sizes Sizes) (*Maps, error) {
	sizes, err := sizes.Round()
	if err != nil {
		return nil, err
	}
	m := &Maps{}
	if m.layouts, err = newLayouts(); err != nil {
		return nil, err
	}
	if err := m.create(func(f field) uint32 { return f.rows(sizes) }); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// create creates the maps that are still nil. size says how many rows a map gets, 0 means as its spec says.
func (m *Maps) create(size func(field) uint32) error {
	specs, err := bpf.LoadMaps()
	if err != nil {
		return fmt.Errorf("read map specs: %w", err)
	}
	for _, f := range m.fields() {
		if f.Map != nil {
			continue
		}
		spec, ok := specs.Maps[f.Name]
		if !ok {
			return fmt.Errorf("create map %s: the object has no such map", f.Name)
		}
		if rows := size(f); rows > 0 {
			spec.MaxEntries = rows
		}
		if PushesOut(f.Name) {
			spec.MaxEntries = max(spec.MaxEntries, m.room.of(f.Name))
		}
		if o := m.olderOf(f.Name); o != nil && (f.Grows || PushesOut(f.Name)) {
			spec.MaxEntries = max(spec.MaxEntries, o.m.MaxEntries())
		}
		if *f.at, err = ebpf.NewMap(spec); err != nil {
			return fmt.Errorf("create map %s: %w", f.Name, err)
		}
		if err := m.describe(f.Name, *f.at); err != nil {
			return err
		}
	}
	return nil
}

// Open opens the maps pinned in dir, whatever their size. The error wraps fs.ErrNotExist if none is
// pinned.
//
// Read-write, Open also accepts maps of another version: it creates and pins the maps which that
// version lacked, and replaces a map of another layout, in the returned set only, by a new one, to
// which CopyOlder copies the rows. Read-only, maps of another version are an error that wraps
// ErrIncompatible. So is, in both cases, a pin that is not the map its name says in any version.
func Open(dir string, readOnly bool) (*Maps, error) {
	specs, err := bpf.LoadMaps()
	if err != nil {
		return nil, fmt.Errorf("read map specs: %w", err)
	}
	m := &Maps{readOnly: readOnly}
	missing, err := m.open(dir, specs)
	switch {
	case err != nil:
	case len(missing) == len(m.fields()):
		err = fmt.Errorf("open maps in %s: none is pinned: %w", dir, fs.ErrNotExist)
	case readOnly && len(missing) > 0:
		err = fmt.Errorf("open maps in %s: %q not pinned: the agent that made the set has another version, or somebody removed these pins, "+
			"which an agent that runs restores within seconds: %w", dir, missing, ErrIncompatible)
	case readOnly:
	default:
		err = m.complete(dir, missing)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// open opens the pinned maps and returns the names of those that are not pinned.
func (m *Maps) open(dir string, specs *ebpf.CollectionSpec) (missing []string, err error) {
	path := filepath.Join(dir, layoutsPin)
	m.layouts, err = ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: m.readOnly})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open map %s: %w", path, err)
	}
	for _, f := range m.fields() {
		err := m.openOne(f, filepath.Join(dir, f.Name), specs)
		if errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, f.Name)
		} else if err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// complete creates and pins the maps that an older version lacked.
func (m *Maps) complete(dir string, missing []string) error {
	if m.layouts == nil {
		var err error
		if m.layouts, err = newLayouts(); err != nil {
			return err
		}
		if err := pin(m.layouts, filepath.Join(dir, layoutsPin)); err != nil {
			return err
		}
		for _, f := range m.fields() {
			if f.Map == nil {
				continue
			}
			if err := m.describe(f.Name, f.Map); err != nil {
				return err
			}
		}
	}
	have := m.Sizes().AtLeast(MinSizes())
	for _, of := range []*ebpf.Map{m.Services, m.Names} {
		if of != nil {
			have.Services = max(have.Services, of.MaxEntries())
		}
	}
	if err := m.create(func(f field) uint32 { return f.rows(have) }); err != nil {
		return err
	}
	for _, f := range m.fields() {
		if !slices.Contains(missing, f.Name) {
			continue
		}
		if err := pin(f.Map, filepath.Join(dir, f.Name)); err != nil {
			return err
		}
	}
	return nil
}

// openOne opens one pinned map. A map of another version goes to m.older.
func (m *Maps) openOne(f field, path string, specs *ebpf.CollectionSpec) error {
	found, err := loadPin(path, specs.Maps[f.Name], m.readOnly)
	if err != nil {
		return err
	}
	was, err := m.noted(found)
	if err != nil {
		return errors.Join(err, found.Close())
	}
	now, err := currentLayout(specs, f.Name)
	if err != nil {
		return errors.Join(err, found.Close())
	}
	differs := check(path, found, specs.Maps[f.Name], f.Grows || PushesOut(f.Name))
	if was != nil && *was != *now {
		differs = errors.Join(differs, fmt.Errorf("open map %s: %w: its rows have another layout; an agent of this version carries "+
			"them over", path, ErrIncompatible))
	}
	switch {
	case differs == nil:
		*f.at = found
		return nil
	case was == nil || m.readOnly:
		return errors.Join(differs, found.Close())
	}
	m.older = append(m.older, older{name: f.Name, m: found, was: was})
	return nil
}

func loadPin(path string, spec *ebpf.MapSpec, readOnly bool) (*ebpf.Map, error) {
	// The kernel maps memory only through a writable descriptor; a read-only mapping protects the
	// memory.
	shared := spec.Flags&unix.BPF_F_MMAPABLE != 0
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: readOnly && !shared})
	if err != nil {
		return nil, fmt.Errorf("open map %s: %w", path, err)
	}
	return m, nil
}

// check returns an error if m is not a map as spec creates it.
func check(path string, m *ebpf.Map, spec *ebpf.MapSpec, grows bool) error {
	spec = spec.Copy()
	if grows {
		spec.MaxEntries = m.MaxEntries()
	}
	if err := spec.Compatible(m); err != nil {
		return fmt.Errorf("open map %s: %w: %w; run the version that made it, or remove its state "+
			"with \"fairlead cleanup\" (connections to services fail until the agent runs again)", path, ErrIncompatible, err)
	}
	return nil
}

func openPin(path string, spec *ebpf.MapSpec, grows, readOnly bool) (*ebpf.Map, error) {
	m, err := loadPin(path, spec, readOnly)
	if err != nil {
		return nil, err
	}
	if err := check(path, m, spec, grows); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Pin pins every map in dir, which must exist, under its name. Maps that were opened from other
// pins keep those too.
func (m *Maps) Pin(dir string) error {
	for _, f := range m.fields() {
		if err := pin(f.Map, filepath.Join(dir, f.Name)); err != nil {
			return err
		}
	}
	return pin(m.layouts, filepath.Join(dir, layoutsPin))
}

// PinOne pins the map called name at path.
func (m *Maps) PinOne(name, path string) error {
	for _, f := range m.fields() {
		if f.Name == name {
			return pin(f.Map, path)
		}
	}
	return fmt.Errorf("pin map %s: no such map", name)
}

// pin pins a duplicate of the map: the library remembers where a map is pinned and would move that
// pin instead of creating another.
func pin(m *ebpf.Map, path string) error {
	dup, err := m.Clone()
	if err != nil {
		return fmt.Errorf("duplicate map for %s: %w", path, err)
	}
	defer dup.Close()
	if err := dup.Pin(path); err != nil {
		return fmt.Errorf("pin map %s: %w", path, err)
	}
	return nil
}

// Clone opens every map again. The caller must close the clone.
func (m *Maps) Clone() (*Maps, error) {
	clone := &Maps{readOnly: m.readOnly}
	if err := clone.shareLayouts(m); err != nil {
		return nil, err
	}
	to := clone.fields()
	for i, f := range m.fields() {
		dup, err := f.Map.Clone()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("duplicate map %s: %w", f.Name, err), clone.Close())
		}
		*to[i].at = dup
	}
	return clone, nil
}

// shareLayouts gives m the layouts of another set.
func (m *Maps) shareLayouts(of *Maps) (err error) {
	if of.layouts == nil {
		return nil
	}
	if m.layouts, err = of.layouts.Clone(); err != nil {
		return fmt.Errorf("duplicate map %s: %w", layoutsPin, err)
	}
	return nil
}

// Close closes the maps. Pins and loaded programs keep them alive.
func (m *Maps) Close() error {
	var errs []error
	for _, f := range m.fields() {
		if f.Map == nil {
			continue
		}
		if err := f.Map.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close map %s: %w", f.Name, err))
		}
		*f.at = nil
	}
	if m.layouts != nil {
		errs = append(errs, m.layouts.Close())
		m.layouts = nil
	}
	return errors.Join(append(errs, m.closeOlder())...)
}

// Replacements returns the maps that an object's programs use, by name, for ebpf.CollectionOptions,
// and sets the sizes in the object's specs to theirs. m still owns the maps.
func (m *Maps) Replacements(object *ebpf.CollectionSpec) map[string]*ebpf.Map {
	maps := map[string]*ebpf.Map{}
	for _, f := range m.fields() {
		if spec, ok := object.Maps[f.Name]; ok {
			spec.MaxEntries = f.Map.MaxEntries()
			maps[f.Name] = f.Map
		}
	}
	return maps
}

// Sizes returns the sizes of the maps, zero for a map that is not open. Services is the smaller
// size of services and names: an interrupted growth may have left one of them larger.
func (m *Maps) Sizes() Sizes {
	size := func(of *ebpf.Map) uint32 {
		if of == nil {
			return 0
		}
		return of.MaxEntries()
	}
	return Sizes{
		Svcs:     size(m.Svcs),
		Services: min(size(m.Services), size(m.Names)),
		Slots:    size(m.Slots),
		Backends: size(m.Backends),
		Flows:    size(m.Ct),
	}
}
