package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/netfilter"
	"fairlead.io/fairlead/pkg/seal"
)

// settling is how long after the first frontends a connection may turn out to have begun before them.
const settling = 10 * time.Second

// former keeps with the stack the connections that it translated before the programs at devices did, as for kube-proxy: to
// the programs each would be one of which nothing is known, and get another backend. It gives them rows as of any
// established flow by which packets go on to the stack as they came. What begins meanwhile the kernel tells.
type former struct {
	kept    bool // or there is nothing to keep
	records *netfilter.Records
	over    sync.WaitGroup
	once    sync.Once // closes records
}

// frontends are those that clients outside dial.
type frontends map[maps.SvcKey]struct{}

func frontendsOf(keys []maps.SvcKey, rows []maps.Svc) frontends {
	f := frontends{}
	for i, key := range keys {
		f.add(key, rows[i])
	}
	return f
}

func (f frontends) add(key maps.SvcKey, row maps.Svc) {
	if !maps.IsHosted(key) && hooksFor(key, row)&packetHooks != 0 && (key.Proto == unix.IPPROTO_TCP || key.Proto == unix.IPPROTO_UDP) {
		f[key] = struct{}{}
	}
}

// has reports whether a flow goes to one of them, or to a NodePort at any address.
func (f frontends) has(flow maps.Flow) bool {
	key := maps.SvcKey{Addr: flow.Daddr, Port: flow.Dport, Proto: flow.Proto}
	if _, ok := f[key]; ok {
		return true
	}
	key.Addr = maps.UnspecifiedOf(key.Addr)
	_, ok := f[key]
	return ok
}

// adoptFormer keeps connections to the frontends in the maps, unless devices have had programs for them all along.
func (d *Datapath) adoptFormer() error {
	known := frontends{}
	if err := d.tables.Svcs.Each(known.add); err != nil {
		return err
	}
	entries, err := os.ReadDir(d.pins.devs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list links at devices: %w", err)
	}
	switch {
	case len(known) > 0 && len(entries) > 0:
		d.former.kept = true
	case len(known) > 0:
		d.former.keep(d, known)
	}
	return nil
}

// keep gives connections to the frontends their rows, before either the frontends or the programs are there. That some go
// without keeps nothing else from being served. The caller holds changing.
func (f *former) keep(d *Datapath, known frontends) {
	if f.kept || len(known) == 0 || !d.servesDevices() {
		return
	}
	f.kept = true
	records, err := netfilter.Open()
	if err != nil {
		d.log.Warn("connections that the stack has translated may be reset", "error", err)
	}
	if records == nil {
		return
	}
	f.records = records
	begun := time.Now()
	var left int
	writer, err := d.newFormerRows(known)
	if err == nil {
		err = writer.open()
	}
	if err == nil {
		left, err = writer.take(records)
	}
	if err != nil || left > 0 {
		d.log.Warn("connections that the stack has translated may be reset", "error", err, "left", left)
	}
	if writer == nil {
		f.once.Do(records.Close)
		return
	}
	d.log.Info("connections stay the stack's", "connections", len(writer.written), "took", time.Since(begun))
	f.over.Go(func() { f.follow(d, writer) })
}

// follow does the same for connections that have begun since. The stack may have seen their first packets before there
// were frontends, and what comes next will find them.
func (f *former) follow(d *Datapath, w *formerRows) {
	defer f.once.Do(f.records.Close)
	err := f.hear(w)
	if errors.Is(err, os.ErrClosed) {
		return
	}
	if err != nil {
		d.log.Warn("connections that the stack has translated may be reset", "error", err)
	}
	if err := w.dropEnded(f.records); err != nil {
		d.log.Warn("the next connections from the ports of some that have ended may be left to the stack", "error", err)
	}
}

// hear gives those that begin their rows, for as long as they may have been seen before there were frontends.
func (f *former) hear(w *formerRows) error {
	until := time.Now().Add(settling)
	for time.Now().Before(until) {
		list, err := f.records.Added(until)
		if err != nil {
			return err
		}
		for _, c := range list {
			if !w.known.has(flowOf(c)) || c.Proto != unix.IPPROTO_TCP && len(w.written) >= w.room {
				continue // datagrams begin without anybody's answer, so a flood of them is to end somewhere
			}
			if err := w.writeNow(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// close ends follow.
func (f *former) close() {
	if f.records != nil {
		f.once.Do(f.records.Close)
	}
	f.over.Wait()
}

// flowOf returns what a client sends.
func flowOf(c netfilter.Connection) maps.Flow { return flowFrom(c.Proto, c.Client, c.Dialled) }

// flowSeen returns the same as its server gets it.
func flowSeen(c netfilter.Connection) maps.Flow { return flowFrom(c.Proto, c.Seen, c.Server) }

func flowFrom(proto uint8, from, to netip.AddrPort) maps.Flow {
	return maps.Flow{
		Saddr: maps.AddrOf(from.Addr()), Sport: maps.PortOf(from.Port()),
		Daddr: maps.AddrOf(to.Addr()), Dport: maps.PortOf(to.Port()), Proto: proto,
	}
}

// formerRows writes rows by which nothing is changed.
type formerRows struct {
	d       *Datapath
	known   frontends
	tick    Tick
	now     uint32 // in ticks
	room    int    // for connections, of four rows each
	written []netfilter.Connection
}

func (d *Datapath) newFormerRows(known frontends) (*formerRows, error) {
	tick, err := MeasureTick()
	if err != nil {
		return nil, err
	}
	now, err := tick.Now()
	if err != nil {
		return nil, err
	}
	room := int(d.maps.Ct.MaxEntries()) / 8 // half of what there is
	return &formerRows{d: d, known: known, tick: tick, now: now, room: room}, nil
}

// take gives what the records have its rows: connections by TCP first, then datagrams, of these first who goes on for long, and last whom
// nobody has answered yet. It returns how many there was no room for, but for the last.
func (w *formerRows) take(records *netfilter.Records) (left int, err error) {
	var datagrams [3][]netfilter.Connection
	var failed error
	err = records.Each(func(c netfilter.Connection) bool {
		list := &datagrams[rankOf(c)]
		switch {
		case !w.known.has(flowOf(c)):
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

// rankOf tells whose datagrams matter more, the least first.
func rankOf(c netfilter.Connection) int {
	switch {
	case c.Lasting:
		return 0
	case c.Answered:
		return 1
	}
	return 2
}

// open has the programs leave to the stack what does not begin a connection and is not known to them: its record may not be
// read yet, and the rows of one that begins with the frontends come too late for its second packet.
func (w *formerRows) open() error {
	return w.d.maps.SetFormer(w.now + uint32(settling/w.tick.Duration) + 1)
}

// writeNow is write for who does not hold changing.
func (w *formerRows) writeNow(c netfilter.Connection) error {
	w.d.changing.Lock()
	defer w.d.changing.Unlock()
	if w.d.maps == nil {
		return nil
	}
	return w.write(c)
}

// write gives a connection its rows: as its client knows it, and as its server does. No flow of the programs may be the same to that
// server: the stack has given the client an address and a port of the node, of which they draw theirs.
func (w *formerRows) write(c netfilter.Connection) error {
	w.written = append(w.written, c)
	if err := w.writeFlow(flowSeen(c), c.Ending); err != nil {
		return err
	}
	return w.writeFlow(flowOf(c), c.Ending)
}

// dropEnded takes the rows of those back that have ended: if that was before they had their rows, nobody tells the programs, and who has their
// ports next would be left to the stack, whose rules may be gone by then. So it does with datagrams that were not answered meanwhile.
func (w *formerRows) dropEnded(records *netfilter.Records) error {
	lasting := map[maps.Flow]bool{}
	if err := records.Each(func(c netfilter.Connection) bool {
		lasting[flowOf(c)] = c.Answered || c.Proto == unix.IPPROTO_TCP
		return true
	}); err != nil {
		return err
	}
	w.d.changing.Lock()
	defer w.d.changing.Unlock()
	if w.d.maps == nil {
		return nil
	}
	for _, c := range w.written {
		if lasting[flowOf(c)] {
			continue
		}
		if err := errors.Join(w.dropFlow(flowSeen(c)), w.dropFlow(flowOf(c))); err != nil {
			return err
		}
	}
	return nil
}

// dropFlow takes a flow's rows back, unless they are another's by now. That of the reply goes last, as it came first.
func (w *formerRows) dropFlow(flow maps.Flow) error {
	back := maps.BackOf(flow, &maps.FlowRow{Saddr: flow.Saddr, Daddr: flow.Daddr, Sport: flow.Sport, Dport: flow.Dport})
	for _, key := range []maps.Flow{flow, back} {
		var row maps.FlowRow
		err := w.d.maps.Ct.Lookup(&key, &row)
		if err == nil && row.Flags&maps.FlowStack != 0 {
			err = w.d.maps.Ct.Delete(&key)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget flow of %s: %w", maps.FlowSource(flow), err)
		}
	}
	return nil
}

// writeFlow gives a flow its rows, unless it has some: then it is known already. That of the reply comes first, as
// nothing goes on without it. Where one side has said that it ends nobody knows which, so both have.
func (w *formerRows) writeFlow(flow maps.Flow, ending bool) error {
	there := maps.FlowRow{
		Saddr: flow.Saddr, Daddr: flow.Daddr, Sport: flow.Sport, Dport: flow.Dport,
		Seen: w.now, State: maps.FlowOpen, Flags: maps.FlowStack,
	}
	if ending {
		there.State = maps.FlowClosing
	}
	reply := maps.BackOf(flow, &there)
	back := there
	back.Saddr, back.Daddr, back.Sport, back.Dport = reply.Saddr, reply.Daddr, reply.Sport, reply.Dport
	back.Flags |= maps.FlowReply
	for _, r := range []struct {
		key maps.Flow
		row maps.FlowRow
	}{{reply, back}, {flow, there}} {
		r.row.Seal = seal.Of(r.key, r.row)
		if err := w.d.maps.Ct.Update(&r.key, &r.row, ebpf.UpdateNoExist); errors.Is(err, ebpf.ErrKeyExist) {
			return nil
		} else if err != nil {
			return fmt.Errorf("write flow of %s: %w", maps.FlowSource(flow), err)
		}
	}
	return nil
}
