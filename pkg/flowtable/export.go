package flowtable

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/netfilter"
	"fairlead.io/fairlead/pkg/ticks"
)

// Exported is how many connections the stack continues once the programs are gone, and why not
// more.
type Exported struct {
	Connections int
	Taken       int // not those whose port netfilter had given to another connection
	Left        error
}

// rounds is how often at most to hand over what there is before the frontends are closed. Others
// begin meanwhile; few is when not to go on.
const rounds, few = 4, 10

// shaking is how long to wait for handshakes that the programs still carry: enough to resend one
// lost packet.
const shaking = 1500 * time.Millisecond

// together is how many flows are handed over together. Their packets are dropped meanwhile.
const together = 128

// exporter writes the connections that the programs translate into netfilter's records, for the
// rules of a proxy that serves from then on. It is the reverse of Importer.
type exporter struct {
	records *netfilter.Writer
	barrier *maps.Barrier
	maps    *maps.Maps
	growing *ebpf.Map // the map that flows are moving to, if any
	buffer  maps.FlowBuffer
	tick    ticks.Tick
	now     uint32 // in ticks
	given   int
	taken   int // those that netfilter did not accept
}

// Export makes the stack continue the connections in the maps pinned in dir, while the programs
// are still attached. In the end the programs take no new ones.
func Export(dir string) Exported {
	h, err := newExporter(dir)
	if h == nil {
		return Exported{Left: err}
	}
	defer h.close()
	err = errors.Join(h.exportMost(), closeFrontends(h.maps), h.awaitHandshakes())
	if err == nil { // or else it would fail once more
		err = h.give()
	}
	return Exported{h.given, h.taken, err}
}

// newExporter opens what is pinned in dir. It returns nil if nothing is, or if the kernel does not
// track connections.
func newExporter(dir string) (*exporter, error) {
	records, err := netfilter.NewWriter()
	if records == nil {
		return nil, err
	}
	h := &exporter{records: records}
	if h.barrier, err = maps.NewBarrier(); err == nil {
		h.tick, err = ticks.Measure()
	}
	if err == nil {
		h.now, err = h.tick.Now()
	}
	if err != nil {
		h.close()
		return nil, err
	}
	if h.growing, err = maps.OpenGrowing(dir); err == nil {
		h.maps, err = maps.Open(dir, false)
	}
	if err == nil {
		return h, nil
	}
	h.close()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, err
}

func (h *exporter) close() {
	h.records.Close()
	if h.barrier != nil {
		h.barrier.Close()
	}
	if h.growing != nil {
		h.growing.Close()
	}
	if h.maps != nil {
		h.maps.Close()
	}
}

// awaitHandshakes waits until no connection is half-open, but not for those that are never
// answered.
func (h *exporter) awaitHandshakes() error {
	for until := time.Now().Add(shaking); time.Now().Before(until); {
		// Give a packet that found a frontend just before the time to write its row.
		time.Sleep(10 * time.Millisecond)
		half := false
		err := maps.EachFlow(h.maps.CtPending, &h.buffer, func(keys []maps.Flow, _ []maps.FlowRow) error {
			for _, key := range keys {
				half = half || key.Proto == unix.IPPROTO_TCP
			}
			return nil
		})
		if err != nil || !half {
			return err
		}
	}
	return nil
}

// exportMost hands over all flows but those that begin meanwhile. Once the frontends are closed, the
// other proxy's rules give clients ports of the same node, and netfilter has to know by then which
// are taken.
func (h *exporter) exportMost() error {
	for range rounds {
		before := h.given
		if err := h.give(); err != nil || h.given-before <= few {
			return err
		}
	}
	return nil
}

// give hands over established flows, TCP first, since there may be many UDP flows. Last come UDP
// flows that were answered and have sent nothing since: if there is no room for them, they can just
// as well go to another backend.
func (h *exporter) give() error {
	for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		for _, m := range []*ebpf.Map{h.growing, h.maps.Ct} {
			if err := h.exportMap(m, proto); err != nil {
				return err
			}
		}
	}
	err := h.exportMap(h.maps.CtPending, unix.IPPROTO_UDP)
	if errors.Is(err, netfilter.ErrFull) {
		return nil
	}
	return err
}

func (h *exporter) exportMap(m *ebpf.Map, proto uint8) error {
	if m == nil {
		return nil
	}
	return maps.EachFlow(m, &h.buffer, func(keys []maps.Flow, rows []maps.FlowRow) error {
		for len(keys) > 0 {
			n := min(len(keys), together)
			if err := h.exportBatch(m, proto, keys[:n], rows[:n]); err != nil {
				return fmt.Errorf("connections from outside may be reset: %w", err)
			}
			keys, rows = keys[n:], rows[n:]
		}
		return nil
	})
}

// exportBatch hands over those of some flows that are translated and not over. In between it waits
// until all packets that the programs have translated are past netfilter.
func (h *exporter) exportBatch(m *ebpf.Map, proto uint8, keys []maps.Flow, rows []maps.FlowRow) error {
	var stopped []int
	for i, key := range keys {
		row := &rows[i]
		if key.Proto != proto || row.Kind&maps.FlowReply != 0 || row.Checksum != maps.ChecksumOf(key, *row) || isOfStack(key, row) {
			continue
		}
		back, ok, err := maps.LookupFlow(m, maps.BackOf(key, row))
		if err == nil && h.isOver(proto, row, &back, ok) {
			continue
		}
		if err = errors.Join(err, stop(m, maps.BackOf(key, row), back, ok), stop(m, key, *row, true)); err != nil {
			return err
		}
		stopped = append(stopped, i)
	}
	if len(stopped) == 0 {
		return nil
	}
	if err := h.barrier.Wait(); err != nil {
		return err
	}
	for _, i := range stopped {
		if err := h.exportFlow(keys[i], &rows[i]); err != nil {
			return err
		}
	}
	return nil
}

// stop makes the programs drop further packets of a flow. A packet that reaches the stack already
// translated does not match the flow's record: the stack would take it for another connection and
// give that another port. TCP retransmits, and so do protocols that rely on UDP.
func stop(m *ebpf.Map, key maps.Flow, row maps.FlowRow, is bool) error {
	if !is {
		return nil
	}
	row.Checksum ^= 1
	if err := m.Update(&key, &row, ebpf.UpdateExist); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("stop flow of %s: %w", maps.FlowSource(key), err)
	}
	return nil
}

// exportFlow hands over a flow whose packets the programs drop.
func (h *exporter) exportFlow(key maps.Flow, row *maps.FlowRow) error {
	to := maps.Flow{Saddr: row.Saddr, Daddr: row.Daddr, Sport: row.Sport, Dport: row.Dport, Proto: key.Proto}
	err := h.records.Add(netfilter.Connection{
		Client: maps.FlowSource(key), Dialed: maps.FlowDestination(key), Seen: maps.FlowSource(to), Server: maps.FlowDestination(to),
		Proto: key.Proto, Answered: true, Lasting: row.State >= maps.FlowOpen,
	})
	switch {
	case err == nil:
		h.given++
		return h.pass(key, row)
	case errors.Is(err, netfilter.ErrTaken):
		if key.Proto == unix.IPPROTO_TCP || row.State >= maps.FlowOpen {
			h.taken++
		} // a question that is answered already can just as well have been the last
		return nil
	}
	return err
}

// pass makes the programs pass a flow to the stack, as long as they are there. If there is no room
// for its rows, its packets are dropped until then.
func (h *exporter) pass(key maps.Flow, row *maps.FlowRow) error {
	seen := maps.Flow{Saddr: row.Saddr, Daddr: row.Daddr, Sport: row.Sport, Dport: row.Dport, Proto: key.Proto}
	for _, flow := range []maps.Flow{seen, key} {
		for _, r := range stackRows(flow, h.now, maps.FlowOpen) {
			if err := h.maps.Ct.Update(&r.key, &r.row, ebpf.UpdateAny); errors.Is(err, unix.E2BIG) {
				return nil
			} else if err != nil {
				return fmt.Errorf("write flow of %s: %w", maps.FlowSource(flow), err)
			}
		}
	}
	return nil
}

// isOver reports whether a flow need not be continued. There may be no agent to delete UDP flows
// that have ended, which nothing announces; a request answered a while ago is no handshake in
// progress; and the stack cannot continue flows that the backend answers directly or has not
// answered.
func (h *exporter) isOver(proto uint8, row, back *maps.FlowRow, ok bool) bool {
	if proto != unix.IPPROTO_UDP {
		return isOver(row, back, ok)
	}
	seen, idle := row.Seen, h.records.Idle()
	if ok && int32(back.Seen-seen) > 0 {
		seen = back.Seen
	}
	if row.State == maps.FlowAnswered {
		idle = min(idle, importWindow)
	}
	return row.State == maps.FlowNew || maps.FlowKindOf(row.Kind).IsDSR() || time.Duration(int32(h.now-seen))*h.tick.Duration > idle
}
