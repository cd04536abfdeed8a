package flowtable

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/ticks"
)

// Drain handles what an agent that is being uninstalled leaves on a node: the frontends are closed
// to new connections, and the programs keep serving existing ones. It finds the flows that the
// stack could not take over if the programs were removed.
type Drain struct {
	maps    *maps.Maps
	growing *ebpf.Map // the map that flows are moving to, if any
	buffer  maps.FlowBuffer
	tick    ticks.Tick
	// linger is the idle time after which a client that has closed counts as gone, if the backend's
	// packets don't pass here.
	linger time.Duration
}

// NewDrain opens the maps that are pinned in dir. It returns nil if none are. Where
// replies don't pass here, a client that has closed counts as gone once it has been silent for
// linger.
func NewDrain(dir string, linger time.Duration) (*Drain, error) {
	d := &Drain{linger: linger}
	var err error
	if d.tick, err = ticks.Measure(); err != nil {
		return nil, err
	}
	if d.growing, err = maps.OpenGrowing(dir); err == nil {
		d.maps, err = maps.Open(dir, false)
	}
	if err == nil {
		return d, nil
	}
	if d.growing != nil {
		d.growing.Close()
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, err
}

// Close closes the maps.
func (d *Drain) Close() error {
	if d.growing != nil {
		d.growing.Close()
	}
	return d.maps.Close()
}

// Flows returns the flow maps, for collecting flows that are over. It returns nil while flows are
// in two maps, because an agent was interrupted. The caller must close it.
func (d *Drain) Flows() (*Flows, error) {
	if d.growing != nil {
		return nil, nil
	}
	return New(d.maps)
}

// CloseFrontends leaves new connections to the rules of others. Packets that other nodes forward to
// backends here are still served.
func (d *Drain) CloseFrontends() error { return closeFrontends(d.maps) }

// closeFrontends deletes the rows of frontends. Other nodes may forward packets addressed to a
// frontend to backends here, so if there are such backends it first writes a ClosedKey row for each
// frontend: a crash in between loses nothing.
func closeFrontends(m *maps.Maps) error {
	keys, rows, hosted, err := listFrontends(m)
	if err != nil {
		return fmt.Errorf("close frontends: %w", err)
	}
	for i, key := range keys {
		closed, left := maps.ClosedKey(key), error(nil)
		if hosted && !maps.IsPing(key) {
			left = m.Svcs.Update(&closed, &rows[i], ebpf.UpdateAny)
		}
		err := m.Svcs.Delete(&key)
		if errors.Is(left, unix.E2BIG) { // the deleted row has made room
			left = m.Svcs.Update(&closed, &rows[i], ebpf.UpdateAny)
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			err = nil
		}
		if err := errors.Join(err, left); err != nil {
			return fmt.Errorf("close frontends: %w", err)
		}
	}
	return nil
}

// listFrontends returns all frontends, and whether other nodes may forward packets to backends
// here.
func listFrontends(m *maps.Maps) (keys []maps.SvcKey, rows []maps.Svc, hosted bool, err error) {
	var key maps.SvcKey
	var row maps.Svc
	list := m.Svcs.Iterate()
	for list.Next(&key, &row) {
		if maps.IsHosted(key) {
			hosted = true
			continue
		}
		keys, rows = append(keys, key), append(rows, row)
	}
	return keys, rows, hosted, list.Err()
}

// Stuck counts flows that the stack could not take over, by reason.
type Stuck struct {
	Direct int // the backend answers its client directly
	Tunnel int // the backend is reached through the tunnel, which goes away
	SCTP   int
	// Forwarded counts flows that another node may be forwarding to a backend here, which then
	// answers the client directly. If no node does, the stack can take them over: a row does not
	// say who sent the packets.
	Forwarded int
}

// All returns the number of flows.
func (s Stuck) All() int { return s.Sure() + s.Forwarded }

// Sure returns the number of flows that the stack certainly cannot take over.
func (s Stuck) Sure() int { return s.Direct + s.Tunnel + s.SCTP }

// Stuck counts the flows that are stuck now.
func (d *Drain) Stuck() (s Stuck, err error) {
	look, err := d.newScan()
	if err != nil {
		return s, err
	}
	for _, m := range []*ebpf.Map{d.growing, d.maps.Ct, d.maps.CtPending} {
		if m == nil {
			continue
		}
		err := maps.EachFlow(m, &d.buffer, func(keys []maps.Flow, rows []maps.FlowRow) error {
			for i := range keys {
				if err := look.countIfStuck(m, keys[i], &rows[i], &s); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return s, fmt.Errorf("look for flows that the stack cannot take over: %w", err)
		}
	}
	return s, nil
}

// flowScan is one scan of all flows.
type flowScan struct {
	*Drain
	now    uint32 // in ticks
	tunnel uint32 // device index; 0 if there is none
	hosted bool
	ways   map[maps.Addr]bool // by backend, whether the tunnel leads there
}

func (d *Drain) newScan() (*flowScan, error) {
	l := &flowScan{Drain: d, ways: map[maps.Addr]bool{}}
	var err error
	if l.now, err = d.tick.Now(); err != nil {
		return nil, err
	}
	if err := d.maps.Tunnel.Lookup(uint32(0), &l.tunnel); err != nil {
		return nil, fmt.Errorf("look up the tunnel: %w", err)
	}
	if _, _, l.hosted, err = listFrontends(d.maps); err != nil {
		return nil, fmt.Errorf("list frontends: %w", err)
	}
	return l, nil
}

// countIfStuck counts a flow if it is stuck and not over.
func (l *flowScan) countIfStuck(m *ebpf.Map, key maps.Flow, row *maps.FlowRow, s *Stuck) error {
	if row.Kind&maps.FlowReply != 0 || row.Checksum != maps.ChecksumOf(key, *row) {
		return nil
	}
	if maps.FlowKindOf(row.Kind).IsDSR() {
		if !l.hasLeft(row) {
			s.Direct++
		}
		return nil
	}
	if row.State == maps.FlowNew || isOfStack(key, row) {
		return nil // nobody has answered, so a retry goes elsewhere; or the stack has the flow
	}
	back, ok, err := maps.LookupFlow(m, maps.BackOf(key, row))
	if err != nil || isOver(row, &back, ok) {
		return err
	}
	switch {
	case key.Proto == unix.IPPROTO_SCTP:
		s.SCTP++
	case maps.FlowKindOf(row.Kind) != maps.FlowMasqueraded && l.isTunneled(row.Daddr):
		s.Tunnel++
	default:
		var is bool
		if is, err = l.isForwarded(key, row); is {
			s.Forwarded++
		}
	}
	return err
}

// hasLeft reports whether the client of a flow that its backend answers directly is gone. After its
// FIN, a client still acknowledges what the backend sends.
func (l *flowScan) hasLeft(row *maps.FlowRow) bool {
	idle := time.Duration(int32(l.now-row.Seen)) * l.tick.Duration
	return row.State == maps.FlowReset || row.State == maps.FlowClosing && idle > l.linger
}

// isTunneled asks the kernel, once for each backend, whether the tunnel leads there. A backend
// without a route counts as not tunneled.
func (l *flowScan) isTunneled(backend maps.Addr) bool {
	if l.tunnel == 0 {
		return false
	}
	is, known := l.ways[backend]
	if known {
		return is
	}
	routes, err := netlink.RouteGet(maps.NetipOf(backend).AsSlice())
	is = err == nil && len(routes) > 0 && routes[0].LinkIndex == int(l.tunnel)
	l.ways[backend] = is
	return is
}

// isForwarded reports whether another node may be forwarding a flow: its client dialed no address
// of this node, and the backend is here.
func (l *flowScan) isForwarded(key maps.Flow, row *maps.FlowRow) (bool, error) {
	if !l.hosted || !maps.FlowKindOf(row.Kind).IsFromOutside() {
		return false, nil
	}
	hosted, err := has(l.maps.Svcs, maps.HostedAddrKey(maps.NetipOf(row.Daddr)))
	if err != nil || !hosted {
		return false, err
	}
	own, err := has(l.maps.NodeAddrs, key.Daddr)
	return err == nil && !own, err
}

// has reports whether the map has a row for key.
func has[K comparable](m *ebpf.Map, key K) (bool, error) {
	row, err := m.LookupBytes(&key)
	if err != nil {
		return false, fmt.Errorf("look up %v: %w", key, err)
	}
	return row != nil, nil
}

// isOfStack reports whether the programs pass a flow unchanged because the stack translates it.
func isOfStack(key maps.Flow, row *maps.FlowRow) bool {
	return key == maps.Flow{Saddr: row.Saddr, Daddr: row.Daddr, Sport: row.Sport, Dport: row.Dport, Proto: key.Proto}
}

// isOver reports whether both ends of an established flow are done with it, as far as its rows
// tell.
func isOver(row, back *maps.FlowRow, ok bool) bool {
	return row.State == maps.FlowReset || ok && back.State == maps.FlowReset || ok && row.State+back.State == 2*maps.FlowClosing
}
