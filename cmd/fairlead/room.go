package main

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

// needs says how much room the maps need that evict rows.
type needs struct {
	cpus     int
	memory   uint64
	flowRows int // for established flows
	services int // with session affinity, counting ports
	clients  int // with session affinity at present
}

// room returns the numbers of rows: what may be needed, at least twice what is there, and no more
// than the memory allows.
func (n needs) room() maps.Room {
	rows := func(want int) uint32 { return min(uint32(min(want, 1<<24)), rowsIn(n.memory/roomShare)) }
	return maps.Room{
		HalfOpen:  rows(n.flowRows / halfOpenShare),
		Clients:   rows(max(n.services*clientsPerService, 2*n.clients)),
		Datagrams: rows(n.cpus * datagramsPerCPU),
	}
}

// rowsIn returns how many rows fit into that much memory: a power of two, and at most what a map
// may have.
func rowsIn(bytes uint64) uint32 {
	return 1 << min(bits.Len64(max(1, bytes/rowBytes))-1, 24)
}

// mostClients returns how many clients with session affinity may have room.
func mostClients(log *slog.Logger) uint32 {
	memory, err := totalMemory()
	if err != nil {
		log.Warn("cannot make more room for clients with session affinity", "error", err)
	}
	return rowsIn(memory / clientsShare)
}

// makeRoom enlarges the maps that evict rows to what the node and its Services need. It never
// shrinks one, and if it fails the maps stay as they are.
func (a *agent) makeRoom(log *slog.Logger) {
	n, err := a.needs()
	if err == nil {
		err = a.path.Enlarge(n.room())
	}
	if err != nil {
		log.Warn("cannot enlarge the maps that evict rows", "error", err)
	}
}

func (a *agent) needs() (n needs, err error) {
	n.cpus = runtime.NumCPU()
	if n.memory, err = totalMemory(); err != nil {
		return n, err
	}
	if n.flowRows, err = mostRows(a.cfg.Conntrack.Max); err != nil {
		return n, err
	}
	// Count what an earlier agent served, and what is known of what this one will serve.
	for _, service := range a.path.Tables().Services {
		if service.AffinitySeconds > 0 {
			n.services++
		}
	}
	n.services = max(n.services, affinePorts(a.store))
	m := a.path.Maps()
	lruCounts, err := maps.TakeLruCounts(m.LruStats, m.Affinity, "affinity")
	if err != nil {
		return n, fmt.Errorf("count clients with session affinity: %w", err)
	}
	n.clients = lruCounts.Rows
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
