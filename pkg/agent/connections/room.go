package connections

import (
	"fmt"
	"log/slog"
	"math/bits"
	"runtime"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

const (
	// halfOpenShare is the share of rows for flows that are not established, relative to those for
	// established flows: they last only as long as a handshake, or half a minute if nobody answers.
	halfOpenShare = 8
	// clientsPerService is how many clients of a port with session affinity have room at first.
	clientsPerService = 4096
	// datagramsPerCPU is how many fragmented datagrams may be on their way at a time.
	datagramsPerCPU = 4096
	// roomShare is the share of the memory that each of these maps may take, clientsShare the share
	// that clients with session affinity may take if there are so many, and rowBytes the size of a
	// row.
	roomShare    = 256
	clientsShare = 64
	rowBytes     = 192
)

// Needs says how much room the maps need that evict rows.
type Needs struct {
	CPUs     int
	Memory   uint64
	FlowRows int // for established flows
	Services int // with session affinity, counting ports
	Clients  int // with session affinity at present
}

// Room returns the numbers of rows: what may be needed, at least twice what is there, and no more
// than the memory allows.
func (n Needs) Room() maps.Room {
	rows := func(want int) uint32 { return min(uint32(min(want, 1<<24)), rowsIn(n.Memory/roomShare)) }
	return maps.Room{
		HalfOpen:  rows(n.FlowRows / halfOpenShare),
		Clients:   rows(max(n.Services*clientsPerService, 2*n.Clients)),
		Datagrams: rows(n.CPUs * datagramsPerCPU),
	}
}

// rowsIn returns how many rows fit into that much memory: a power of two, and at most what a map
// may have.
func rowsIn(bytes uint64) uint32 {
	return 1 << min(bits.Len64(max(1, bytes/rowBytes))-1, 24)
}

// MostClients returns how many clients with session affinity may have room.
func MostClients(log *slog.Logger) uint32 {
	memory, err := TotalMemory()
	if err != nil {
		log.Warn("cannot make more room for clients with session affinity", "error", err)
	}
	return rowsIn(memory / clientsShare)
}

// MakeRoom enlarges the maps that evict rows to what the node and its Services need. It never
// shrinks one, and if it fails the maps stay as they are.
func MakeRoom(cfg *Config, store *model.Store) {
	n, err := needsOf(cfg, store)
	if err == nil {
		err = cfg.Path.Enlarge(n.Room())
	}
	if err != nil {
		cfg.Log.Warn("cannot enlarge the maps that evict rows", "error", err)
	}
}

func needsOf(cfg *Config, store *model.Store) (n Needs, err error) {
	n.CPUs = runtime.NumCPU()
	if n.Memory, err = TotalMemory(); err != nil {
		return n, err
	}
	if n.FlowRows, err = MostRows(cfg.Options.Conntrack.Max); err != nil {
		return n, err
	}
	// Count what an earlier agent served, and what is known of what this one will serve.
	for _, service := range cfg.Path.Tables().Services {
		if service.AffinitySeconds > 0 {
			n.Services++
		}
	}
	n.Services = max(n.Services, affinePorts(store))
	m := cfg.Path.Maps()
	lruCounts, err := maps.TakeLruCounts(m.LruStats, m.Affinity, "affinity")
	if err != nil {
		return n, fmt.Errorf("count clients with session affinity: %w", err)
	}
	n.Clients = lruCounts.Rows
	return n, nil
}

// affinePorts counts the ports of Services with session affinity, once per family.
func affinePorts(store *model.Store) (n int) {
	for _, key := range store.Keys() {
		if key.Kind == model.KindPod {
			continue
		}
		if service, _ := store.Service(key.Name); service != nil && service.AffinitySeconds > 0 {
			n += len(service.Ports) * max(1, len(service.ClusterIPs))
		}
	}
	return n
}
