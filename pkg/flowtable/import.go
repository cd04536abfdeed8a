package flowtable

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/netfilter"
	"fairlead.io/fairlead/pkg/ticks"
)

// importWindow is how long after the first frontends a connection may turn out to have begun before
// them.
const importWindow = 10 * time.Second

// Importer leaves to the stack the connections that it already translated, for example for
// kube-proxy, before the devices had programs: the programs would not know such a connection and
// would send it to another backend. Importer writes rows of an established flow for it that make the
// programs pass its packets to the stack unchanged. The kernel reports connections that begin
// meanwhile.
type Importer struct {
	imported bool // done, or there was nothing to do
	log      *slog.Logger
	changing sync.Locker       // held while maps are replaced
	maps     func() *maps.Maps // nil once they are closed
	records  *netfilter.Records
	over     sync.WaitGroup
	once     sync.Once // closes records
}

// NewImporter returns an Importer that writes to the maps that are in use.
func NewImporter(log *slog.Logger, changing sync.Locker, inUse func() *maps.Maps) *Importer {
	return &Importer{log: log, changing: changing, maps: inUse}
}

// Done reports whether connections were imported, or there was nothing to import.
func (f *Importer) Done() bool { return f.imported }

// Skip says that there is nothing to import.
func (f *Importer) Skip() { f.imported = true }

// Frontends are those that clients outside dial.
type Frontends map[maps.SvcKey]struct{}

// has reports whether a flow goes to one of the frontends, or to a NodePort at any address.
func (f Frontends) has(flow maps.Flow) bool {
	key := maps.SvcKey{Addr: flow.Daddr, Port: flow.Dport, Proto: flow.Proto}
	if _, ok := f[key]; ok {
		return true
	}
	key.Addr = maps.UnspecifiedOf(key.Addr)
	_, ok := f[key]
	return ok
}

// Import writes the rows for connections to the frontends, before the frontends or the programs
// exist. If it fails for some connections, everything else is still served. The caller holds
// changing.
func (f *Importer) Import(known Frontends) {
	if f.imported || len(known) == 0 {
		return
	}
	f.imported = true
	records, err := netfilter.Open()
	if err != nil {
		f.log.Warn("connections that the stack has translated may be reset", "error", err)
	}
	if records == nil {
		return
	}
	f.records = records
	begun := time.Now()
	var left int
	writer, err := f.newRowWriter(known)
	if err == nil {
		err = writer.open()
	}
	if err == nil {
		left, err = writer.take(records)
	}
	if err != nil || left > 0 {
		f.log.Warn("connections that the stack has translated may be reset", "error", err, "left", left)
	}
	if writer == nil {
		f.once.Do(records.Close)
		return
	}
	f.log.Info("existing connections stay with the stack", "connections", len(writer.written), "took", time.Since(begun))
	f.over.Go(func() { f.follow(writer) })
}

// follow writes rows for connections that began later: the stack may have seen their first packets
// before the frontends existed, and their next packets will find the frontends.
func (f *Importer) follow(w *rowWriter) {
	defer f.once.Do(f.records.Close)
	err := f.hear(w)
	if errors.Is(err, os.ErrClosed) {
		return
	}
	if err != nil {
		f.log.Warn("connections that the stack has translated may be reset", "error", err)
	}
	if err := w.dropEnded(f.records); err != nil {
		f.log.Warn("cannot delete the rows of connections that have ended: later ones from the same ports may be left to the stack", "error", err)
	}
}

// hear writes rows for new connections, for as long as they may have begun before the frontends
// existed.
func (f *Importer) hear(w *rowWriter) error {
	until := time.Now().Add(importWindow)
	for time.Now().Before(until) {
		list, err := f.records.Added(until)
		if err != nil {
			return err
		}
		for _, c := range list {
			if !w.needs(c) || c.Proto != unix.IPPROTO_TCP && len(w.written) >= w.room {
				continue // UDP flows begin without an answer, so limit what a flood of them can write
			}
			if err := w.writeNow(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close ends follow.
func (f *Importer) Close() {
	if f.records != nil {
		f.once.Do(f.records.Close)
	}
	f.over.Wait()
}

// flowOf returns the flow as the client sends it.
func flowOf(c netfilter.Connection) maps.Flow { return flowFrom(c.Proto, c.Client, c.Dialed) }

// flowSeen returns the flow as the server receives it.
func flowSeen(c netfilter.Connection) maps.Flow { return flowFrom(c.Proto, c.Seen, c.Server) }

func flowFrom(proto uint8, from, to netip.AddrPort) maps.Flow {
	return maps.Flow{
		Saddr: maps.AddrOf(from.Addr()), Sport: maps.PortOf(from.Port()),
		Daddr: maps.AddrOf(to.Addr()), Dport: maps.PortOf(to.Port()), Proto: proto,
	}
}

// rowWriter writes rows that make the programs pass flows unchanged.
type rowWriter struct {
	to      *Importer
	known   Frontends
	tick    ticks.Tick
	now     uint32 // in ticks
	room    int    // maximum of connections, which have four rows each
	written []netfilter.Connection
}

func (f *Importer) newRowWriter(known Frontends) (*rowWriter, error) {
	tick, err := ticks.Measure()
	if err != nil {
		return nil, err
	}
	now, err := tick.Now()
	if err != nil {
		return nil, err
	}
	room := int(f.maps().Ct.MaxEntries()) / 8 // half of the map
	return &rowWriter{to: f, known: known, tick: tick, now: now, room: room}, nil
}

// take writes rows for the connections in the records: TCP first, then UDP, of these first those
// that last and at the end those not answered yet. It returns how many it had no room for, without
// counting the unanswered ones.
func (w *rowWriter) take(records *netfilter.Records) (left int, err error) {
	var datagrams [3][]netfilter.Connection
	var failed error
	err = records.Each(func(c netfilter.Connection) bool {
		list := &datagrams[rankOf(c)]
		switch {
		case !w.needs(c):
		case c.Proto == unix.IPPROTO_TCP && len(w.written) < w.room:
			failed = w.write(c)
		case c.Proto != unix.IPPROTO_TCP && len(*list) < w.room:
			*list = append(*list, c)
		case c.Answered:
			left++
		}
		return failed == nil
	})
	err = errors.Join(err, failed)
	for rank, list := range datagrams {
		n := min(len(list), w.room-len(w.written))
		for i := 0; i < n && err == nil; i++ {
			err = w.write(list[i])
		}
		if rank < len(datagrams)-1 {
			left += len(list) - n
		}
	}
	return left, err
}

// rankOf ranks UDP flows, the most important first.
func rankOf(c netfilter.Connection) int {
	switch {
	case c.Lasting:
		return 0
	case c.Answered:
		return 1
	}
	return 2
}

// open makes the programs leave to the stack any packet that does not open a connection and belongs
// to no known flow. The record of its connection may not have been read yet, and if the connection
// begins at the same time as the frontends, its rows come too late for its second packet.
func (w *rowWriter) open() error {
	return w.to.maps().SetConntrackImport(w.now + uint32(importWindow/w.tick.Duration) + 1)
}

// writeNow is write for callers that do not hold changing.
func (w *rowWriter) writeNow(c netfilter.Connection) error {
	w.to.changing.Lock()
	defer w.to.changing.Unlock()
	if w.to.maps() == nil {
		return nil
	}
	return w.write(c)
}

// needs reports whether a connection needs rows: its client's packets meet a frontend, or the stack
// gave it an address and a port of the node.
func (w *rowWriter) needs(c netfilter.Connection) bool {
	return w.known.has(flowOf(c)) || c.Seen != c.Client
}

// flows returns the flows for which a connection needs rows: as its server sees it, and as its
// client sees it if that dials a frontend. No flow of the programs may look the same to that server:
// they choose from the same ports of the node.
func (w *rowWriter) flows(c netfilter.Connection) []maps.Flow {
	if !w.known.has(flowOf(c)) {
		return []maps.Flow{flowSeen(c)}
	}
	return []maps.Flow{flowSeen(c), flowOf(c)}
}

// write writes the rows of a connection.
func (w *rowWriter) write(c netfilter.Connection) error {
	w.written = append(w.written, c)
	for _, flow := range w.flows(c) {
		if err := w.writeFlow(flow, c.Ending); err != nil {
			return err
		}
	}
	return nil
}

// dropEnded deletes the rows of connections that have ended. If one ended before its rows were
// written, the programs never learn of it, and the next connection from its port would be left to
// the stack, whose rules may be gone by then. It does the same for UDP flows that were not answered
// meanwhile.
func (w *rowWriter) dropEnded(records *netfilter.Records) error {
	lasting := map[maps.Flow]bool{}
	if err := records.Each(func(c netfilter.Connection) bool {
		lasting[flowOf(c)] = c.Answered || c.Proto == unix.IPPROTO_TCP
		return true
	}); err != nil {
		return err
	}
	w.to.changing.Lock()
	defer w.to.changing.Unlock()
	if w.to.maps() == nil {
		return nil
	}
	for _, c := range w.written {
		if lasting[flowOf(c)] {
			continue
		}
		for _, flow := range w.flows(c) {
			if err := w.dropFlow(flow); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropFlow deletes a flow's rows, unless they belong to another flow by now. It deletes the row of
// the reply last, as it was written first.
func (w *rowWriter) dropFlow(flow maps.Flow) error {
	back := maps.BackOf(flow, &maps.FlowRow{Saddr: flow.Saddr, Daddr: flow.Daddr, Sport: flow.Sport, Dport: flow.Dport})
	for _, key := range []maps.Flow{flow, back} {
		var row maps.FlowRow
		err := w.to.maps().Ct.Lookup(&key, &row)
		if err == nil && maps.FlowKindOf(row.Kind) == maps.FlowLocal {
			err = w.to.maps().Ct.Delete(&key)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete flow of %s: %w", maps.FlowSource(flow), err)
		}
	}
	return nil
}

// writeFlow writes the rows of a flow unless they exist: then the flow is known already. If one side
// has closed, it is not known which, so both rows are marked.
func (w *rowWriter) writeFlow(flow maps.Flow, ending bool) error {
	state := maps.FlowOpen
	if ending {
		state = maps.FlowClosing
	}
	for _, r := range stackRows(flow, w.now, state) {
		if err := w.to.maps().Ct.Update(&r.key, &r.row, ebpf.UpdateNoExist); errors.Is(err, ebpf.ErrKeyExist) {
			return nil
		} else if err != nil {
			return fmt.Errorf("write flow of %s: %w", maps.FlowSource(flow), err)
		}
	}
	return nil
}

// stackRow is a row that makes the programs pass packets unchanged.
type stackRow struct {
	key maps.Flow
	row maps.FlowRow
}

// stackRows returns the rows of a flow that the stack translates: first that of its replies, since
// the other is of no use without it.
func stackRows(flow maps.Flow, now uint32, state uint8) [2]stackRow {
	there := maps.FlowRow{
		Saddr: flow.Saddr, Daddr: flow.Daddr, Sport: flow.Sport, Dport: flow.Dport, Seen: now, State: state, Kind: uint8(maps.FlowLocal),
	}
	reply := maps.BackOf(flow, &there)
	back := there
	back.Saddr, back.Daddr, back.Sport, back.Dport = reply.Saddr, reply.Daddr, reply.Sport, reply.Dport
	back.Kind |= maps.FlowReply
	rows := [2]stackRow{{reply, back}, {flow, there}}
	for i := range rows {
		rows[i].row.Checksum = maps.ChecksumOf(rows[i].key, rows[i].row)
	}
	return rows
}
