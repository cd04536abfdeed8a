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
	// halfOpenShare is the part of the rows that established flows may have which those get that are not: they last for as
	// long as a handshake, or for half a minute where nobody answers.
	halfOpenShare = 8
	// clientsPerService is how many clients of a port with session affinity there is room for at first.
	clientsPerService = 4096
	// datagramsPerCPU is how many datagrams in fragments may be on their way at a time.
	datagramsPerCPU = 4096
	// roomShare is the part of the memory that each of these maps may take, clientsShare what clients with session
	// affinity may when there are so many, and rowBytes what a row takes.
	roomShare    = 256
	clientsShare = 64
	rowBytes     = 192
)

// needs is what says how many rows the maps should have that push out what they have no room for.
type needs struct {
	cpus     int
	memory   uint64
	flowRows int // that established flows may have
	services int // with session affinity, counting ports
	clients  int // with session affinity that there are
}

// room returns the rows: by what there may be, twice what there is, and no more than there is memory for.
func (n needs) room() maps.Room {
	rows := func(want int) uint32 { return min(uint32(min(want, 1<<24)), rowsIn(n.memory/roomShare)) }
	return maps.Room{
		HalfOpen:  rows(n.flowRows / halfOpenShare),
		Clients:   rows(max(n.services*clientsPerService, 2*n.clients)),
		Datagrams: rows(n.cpus * datagramsPerCPU),
	}
}

// rowsIn returns how many rows so much memory has: a power of two, and no more than a map may have.
func rowsIn(bytes uint64) uint32 {
	return 1 << min(bits.Len64(max(1, bytes/rowBytes))-1, 24)
}

// mostClients returns how many clients with session affinity there may be room for.
func mostClients(log *slog.Logger) uint32 {
	memory, err := totalMemory()
	if err != nil {
		log.Warn("clients with session affinity get no more room", "error", err)
	}
	return rowsIn(memory / clientsShare)
}

// makeRoom gives the maps that push out as many rows as the node and what it serves ask for. It never takes any away, and
// what it cannot do leaves the maps as they are.
func (a *agent) makeRoom(log *slog.Logger) {
	n, err := a.needs()
	if err == nil {
		err = a.path.Enlarge(n.room())
	}
	if err != nil {
		log.Warn("maps that push rows out stay as large as they are", "error", err)
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
	// What an earlier agent served, and what is known of what this one is to serve.
	for _, service := range a.path.Tables().Services {
		if service.AffinitySeconds > 0 {
			n.services++
		}
	}
	n.services = max(n.services, affinePorts(a.store))
	m := a.path.Maps()
	census, err := maps.TakeCensus(m.Turnover, m.Affinity, "affinity")
	if err != nil {
		return n, fmt.Errorf("count clients with session affinity: %w", err)
	}
	n.clients = census.Rows
	return n, nil
}

// affinePorts counts the ports of Services with session affinity, for each family.
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
