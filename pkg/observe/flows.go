package observe

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// The states of a flow.
const (
	FlowNew        = "new"         // nobody has answered
	FlowAnswered   = "answered"    // the client has not shown yet that it has seen the answer
	FlowOpen       = "open"        // both ends are there
	FlowHalfClosed = "half-closed" // one end has closed
	FlowClosed     = "closed"      // both have
	FlowReset      = "reset"       // one has refused to go on
)

// FlowStates lists the states in the order in which a flow goes through them.
func FlowStates() []string {
	return []string{FlowNew, FlowAnswered, FlowOpen, FlowHalfClosed, FlowClosed, FlowReset}
}

// Flow is a flow of packets that is remembered. The client sends to the frontend; the backend gets that from the source.
type Flow struct {
	Protocol string         `json:"protocol"`
	State    string         `json:"state"`
	Client   netip.AddrPort `json:"client"`
	Frontend netip.AddrPort `json:"frontend"`
	Source   netip.AddrPort `json:"source"`
	Backend  netip.AddrPort `json:"backend"`
	// IdleSeconds is how long ago the last packet came; nil where that cannot be told.
	IdleSeconds *int `json:"idleSeconds,omitempty"`
	// Missing says which direction has no row.
	Missing string `json:"missing,omitempty"`
}

// FlowClock says which tick it is, and how long one is.
type FlowClock struct {
	Now  uint32
	Tick time.Duration
}

// FlowReader reads the flows that are pinned.
type FlowReader struct {
	next       *ebpf.Map // what open is replaced by while that grows; nil if it does not
	open, half *ebpf.Map
	clock      *FlowClock
	buffer     maps.FlowBuffer
}

// OpenFlows opens the flows that are pinned in dir, read-only. Without a clock nobody knows how long they were idle. The
// caller closes it.
func OpenFlows(dir string, clock *FlowClock) (*FlowReader, error) {
	next, err := maps.OpenGrowing(dir)
	if err != nil {
		return nil, err
	}
	open, half, err := maps.OpenFlows(dir, true)
	if err != nil {
		return nil, errors.Join(err, next.Close())
	}
	return &FlowReader{next: next, open: open, half: half, clock: clock}, nil
}

// Close lets go of the flows.
func (r *FlowReader) Close() error {
	return errors.Join(r.next.Close(), r.open.Close(), r.half.Close())
}

// Each calls visit for every flow that the filter lets pass, with its keys, and whether it is half open. It holds only
// some rows at a time. Flows that come, go or are established meanwhile may be missed or come twice; those that move to a
// larger map come once. An error of visit ends it.
func (r *FlowReader) Each(filter *FlowFilter, visit func(f *Flow, keys maps.Doomed, half bool) error) error {
	// What is carried over meanwhile stays where it was, so whoever reads that map first misses nothing.
	shown := map[maps.Flow]struct{}{}
	for _, m := range []*ebpf.Map{r.open, r.next, r.half} {
		if m == nil {
			continue
		}
		half := m == r.half
		err := maps.EachFlow(m, &r.buffer, func(keys []maps.Flow, rows []maps.FlowRow) error {
			for i := range keys {
				err := r.visit(m, filter, keys[i], rows[i], func(f *Flow, d maps.Doomed) error {
					if _, twice := shown[d.Request]; twice && m == r.next {
						return nil
					}
					if r.next != nil && m == r.open {
						shown[d.Request] = struct{}{}
					}
					return visit(f, d, half)
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// isElsewhere reports whether a row of one map counts in another: programs look into the larger one first.
func (r *FlowReader) isElsewhere(m *ebpf.Map, key maps.Flow) (bool, error) {
	if m != r.open || r.next == nil {
		return false, nil
	}
	_, there, err := maps.LookupFlow(r.next, key)
	return there, err
}

// find returns the row of a key where rows of the map may be by now.
func (r *FlowReader) find(m *ebpf.Map, key maps.Flow) (row maps.FlowRow, there bool, err error) {
	if m != r.half && r.next != nil {
		if row, there, err = maps.LookupFlow(r.next, key); err != nil || there {
			return row, there, err
		}
		m = r.open
	}
	return maps.LookupFlow(m, key)
}

// visit shows a flow once: by the row of its request, or by that of its reply if there is no other.
func (r *FlowReader) visit(m *ebpf.Map, filter *FlowFilter, key maps.Flow, row maps.FlowRow, visit func(*Flow, maps.Doomed) error) error {
	d := maps.Doomed{Request: key, Reply: maps.BackOf(key, &row)}
	reply := row.Flags&maps.FlowReply != 0
	if reply {
		d.Request, d.Reply = d.Reply, d.Request
	}
	f := Flow{
		Protocol: flowProtocol(key.Proto),
		Client:   maps.FlowSource(d.Request), Frontend: maps.FlowDestination(d.Request),
		Source: maps.FlowDestination(d.Reply), Backend: maps.FlowSource(d.Reply),
	}
	if !filter.passesAddresses(&f) {
		return nil
	}
	elsewhere, err := r.isElsewhere(m, key)
	if err != nil || elsewhere {
		return err
	}
	other, there, err := r.find(m, maps.BackOf(key, &row))
	if err != nil {
		return err
	}
	// A row that leads elsewhere is another flow's.
	there = there && maps.BackOf(maps.BackOf(key, &row), &other) == key
	if reply && there {
		return nil
	}
	rows := []maps.FlowRow{row}
	switch {
	case there:
		rows = append(rows, other)
	case reply:
		f.Missing = "request"
	default:
		f.Missing = "reply"
	}
	f.State, f.IdleSeconds = flowState(rows), r.idle(rows, key.Proto)
	if !filter.passesState(&f) {
		return nil
	}
	return visit(&f, d)
}

func flowState(rows []maps.FlowRow) string {
	closing := 0
	for _, row := range rows {
		switch row.State {
		case maps.FlowReset:
			return FlowReset
		case maps.FlowAnswered:
			return FlowAnswered
		case maps.FlowClosing:
			closing++
		}
	}
	switch {
	case closing == len(rows):
		return FlowClosed
	case closing > 0:
		return FlowHalfClosed
	case rows[0].State == maps.FlowNew:
		return FlowNew
	}
	return FlowOpen
}

// idle returns how long ago the rows were used. The request of a half-open connection by TCP has no time.
func (r *FlowReader) idle(rows []maps.FlowRow, proto uint8) *int {
	if r.clock == nil {
		return nil
	}
	var least *int
	for _, row := range rows {
		half := row.State == maps.FlowNew || row.State == maps.FlowAnswered
		if half && proto == uint8(model.TCP) && row.Flags&maps.FlowReply == 0 {
			continue
		}
		ticks := max(0, int32(r.clock.Now-row.Seen))
		if seconds := int((time.Duration(ticks) * r.clock.Tick).Round(time.Second).Seconds()); least == nil || seconds < *least {
			least = &seconds
		}
	}
	return least
}

func flowProtocol(proto uint8) string {
	switch p := model.Protocol(proto); p {
	case model.TCP, model.UDP, model.SCTP:
		return strings.ToLower(p.String())
	}
	switch proto {
	case unix.IPPROTO_ICMP:
		return "icmp"
	case unix.IPPROTO_ICMPV6:
		return "icmp6"
	}
	return strconv.Itoa(int(proto))
}

// FlowFilter lets flows pass that have all that is set.
type FlowFilter struct {
	Src   netip.Prefix // the client
	Dst   netip.Prefix // the frontend or the backend
	Port  uint16       // of the frontend or the backend
	Proto string       // "tcp", "udp", "sctp", "icmp", "icmp6" or a number
	State string       // one of FlowStates
}

// Check returns an error for what no flow can have.
func (f *FlowFilter) Check() error {
	if f.State != "" && !slices.Contains(FlowStates(), f.State) {
		return fmt.Errorf("unknown state %q: use %s", f.State, strings.Join(FlowStates(), ", "))
	}
	if number, err := strconv.ParseUint(f.Proto, 10, 8); err == nil {
		f.Proto = flowProtocol(uint8(number))
	} else if f.Proto != "" && !slices.Contains([]string{"tcp", "udp", "sctp", "icmp", "icmp6"}, f.Proto) {
		return fmt.Errorf("unknown protocol %q: use tcp, udp, sctp, icmp, icmp6 or a number", f.Proto)
	}
	return nil
}

func (f *FlowFilter) passesAddresses(flow *Flow) bool {
	in := func(p netip.Prefix, addrs ...netip.AddrPort) bool {
		return !p.IsValid() || slices.ContainsFunc(addrs, func(a netip.AddrPort) bool { return p.Contains(a.Addr()) })
	}
	return in(f.Src, flow.Client) && in(f.Dst, flow.Frontend, flow.Backend) &&
		(f.Port == 0 || f.Port == flow.Frontend.Port() || f.Port == flow.Backend.Port()) &&
		(f.Proto == "" || f.Proto == flow.Protocol)
}

func (f *FlowFilter) passesState(flow *Flow) bool { return f.State == "" || f.State == flow.State }
