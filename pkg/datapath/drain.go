package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/seal"
)

// Drain is what an agent has left on a node, on the way out: the frontends are closed to what begins, and the programs go on with what there is.
// It knows the flows with which the stack could not go on if the programs were gone.
type Drain struct {
	maps    *maps.Maps
	growing *ebpf.Map // what the flows move to, if they do
	buffer  maps.FlowBuffer
	tick    Tick
	linger  time.Duration // after which a client that has ended, and whose backend nobody hears, is over
}

// NewDrain opens what is pinned below the bpf filesystem; it returns nil if there is nothing. A client that ends is over when it has been silent
// for so long, where answers do not pass here.
func NewDrain(bpffs string, linger time.Duration) (*Drain, error) {
	dir := MapsDir(bpffs)
	d := &Drain{linger: linger}
	var err error
	if d.tick, err = MeasureTick(); err != nil {
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

// Close lets go of the maps.
func (d *Drain) Close() error {
	if d.growing != nil {
		d.growing.Close()
	}
	return d.maps.Close()
}

// Flows returns the memory of flows, for who forgets those that are over; nil while they are in two maps, since an agent was interrupted. The
// caller closes it.
func (d *Drain) Flows() (*Flows, error) {
	if d.growing != nil {
		return nil, nil
	}
	return NewFlows(d.maps)
}

// CloseFrontends leaves what begins to others' rules. What other nodes forward to backends here goes on.
func (d *Drain) CloseFrontends() error { return closeFrontends(d.maps) }

// closeFrontends turns frontends into what is none. What can be forwarded here by other nodes is known by them still, so each leaves a row behind then,
// before it goes: whoever is killed in between has lost nothing.
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
		if errors.Is(left, unix.E2BIG) { // there is room now
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

// listFrontends returns all frontends, and whether other nodes may forward packets to backends here.
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

// Stuck are flows with which the stack could not go on, and why not.
type Stuck struct {
	Direct int // a backend answers its client itself
	Tunnel int // the tunnel that leads to the backend goes
	SCTP   int
	// Forwarded are those that another node may forward to a backend here, which then answers the client itself. If none does, the
	// stack can go on with them: a row does not tell who sent what it is about.
	Forwarded int
}

// All returns how many these are.
func (s Stuck) All() int { return s.Sure() + s.Forwarded }

// Sure returns with how many the stack cannot go on in any case.
func (s Stuck) Sure() int { return s.Direct + s.Tunnel + s.SCTP }

// Stuck returns how many there are now.
func (d *Drain) Stuck() (s Stuck, err error) {
	look, err := d.newLook()
	if err != nil {
		return s, err
	}
	for _, m := range []*ebpf.Map{d.growing, d.maps.Ct, d.maps.CtHalf} {
		if m == nil {
			continue
		}
		err := maps.EachFlow(m, &d.buffer, func(keys []maps.Flow, rows []maps.FlowRow) error {
			for i := range keys {
				if err := look.judge(m, keys[i], &rows[i], &s); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return s, fmt.Errorf("look for what others cannot go on with: %w", err)
		}
	}
	return s, nil
}

// look is one at all flows.
type look struct {
	*Drain
	now    uint32 // in ticks
	tunnel uint32 // the device; 0 for none
	hosted bool
	ways   map[maps.Addr]bool // whether the tunnel leads there
}

func (d *Drain) newLook() (*look, error) {
	l := &look{Drain: d, ways: map[maps.Addr]bool{}}
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

// judge counts a flow if it is not over, and stuck.
func (l *look) judge(m *ebpf.Map, key maps.Flow, row *maps.FlowRow, s *Stuck) error {
	if row.Flags&maps.FlowReply != 0 || row.Seal != seal.Of(key, *row) {
		return nil
	}
	if maps.DirectMode(row.Flags) != 0 {
		if !l.hasLeft(row) {
			s.Direct++
		}
		return nil
	}
	if row.State == maps.FlowNew || isFormers(key, row) {
		return nil // nobody has answered, and who asks again asks others; or the stack has it
	}
	back, ok, err := maps.LookupFlow(m, maps.BackOf(key, row))
	if err != nil || isOver(row, &back, ok) {
		return err
	}
	switch {
	case key.Proto == unix.IPPROTO_SCTP:
		s.SCTP++
	case row.Flags&(maps.FlowPod|maps.FlowInside|maps.FlowNode) != maps.FlowPod && l.isTunnelled(row.Daddr): // else a pod asks somebody outside
		s.Tunnel++
	default:
		var is bool
		if is, err = l.isForwarded(key, row); is {
			s.Forwarded++
		}
	}
	return err
}

// hasLeft reports whether the client of a flow that its backend answers itself is gone. Whoever has sent FIN goes on to acknowledge what the
// backend still sends.
func (l *look) hasLeft(row *maps.FlowRow) bool {
	idle := time.Duration(int32(l.now-row.Seen)) * l.tick.Duration
	return row.State == maps.FlowReset || row.State == maps.FlowClosing && idle > l.linger
}

// isTunnelled asks the kernel, once for each backend. What it does not tell of leads nowhere.
func (l *look) isTunnelled(backend maps.Addr) bool {
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

// isForwarded reports whether a flow may come from another node: what its client dialled is no address of this one, and the backend is here.
func (l *look) isForwarded(key maps.Flow, row *maps.FlowRow) (bool, error) {
	if !l.hosted || row.Flags&(maps.FlowPod|maps.FlowInside|maps.FlowNode) != 0 {
		return false, nil
	}
	backend := netip.AddrPortFrom(maps.NetipOf(row.Daddr), maps.PortOf(row.Dport))
	hosted, err := has(l.maps.Svcs, maps.HostedKey(backend.Addr(), backend.Port()))
	if err != nil || !hosted {
		return false, err
	}
	own, err := has(l.maps.NodeAddrs, key.Daddr)
	return err == nil && !own, err
}

// has reports whether a map has a row.
func has[K comparable](m *ebpf.Map, key K) (bool, error) {
	row, err := m.LookupBytes(&key)
	if err != nil {
		return false, fmt.Errorf("look up %v: %w", key, err)
	}
	return row != nil, nil
}

// isFormers reports whether the programs pass a flow as it comes, since the stack translates it.
func isFormers(key maps.Flow, row *maps.FlowRow) bool {
	return key == maps.Flow{Saddr: row.Saddr, Daddr: row.Daddr, Sport: row.Sport, Dport: row.Dport, Proto: key.Proto}
}

// isOver reports whether both ends of an established flow are done with it, as far as its rows tell.
func isOver(row, back *maps.FlowRow, ok bool) bool {
	return row.State == maps.FlowReset || ok && back.State == maps.FlowReset || ok && row.State+back.State == 2*maps.FlowClosing
}
