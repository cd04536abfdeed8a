package snapshot

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
	FlowAnswered   = "answered"    // the client has not acknowledged the answer yet
	FlowOpen       = "open"        // established
	FlowHalfClosed = "half-closed" // one end has closed
	FlowClosed     = "closed"      // both have
	FlowReset      = "reset"       // one end has reset it
)

// FlowStates lists the states in the order in which a flow goes through them.
func FlowStates() []string {
	return []string{FlowNew, FlowAnswered, FlowOpen, FlowHalfClosed, FlowClosed, FlowReset}
}

// Flow is a tracked flow. The client sends to the frontend; the backend receives that from the
// source.
type Flow struct {
	Protocol string         `json:"protocol"`
	State    string         `json:"state"`
	Kind     string         `json:"kind"` // who began it, and how it reaches the backend
	Client   netip.AddrPort `json:"client"`
	Frontend netip.AddrPort `json:"frontend"`
	Source   netip.AddrPort `json:"source"`
	Backend  netip.AddrPort `json:"backend"`
	// IdleSeconds is the time since the last packet, or nil if it is not known.
	IdleSeconds *int `json:"idleSeconds,omitempty"`
	// Missing names the direction that has no row.
	Missing string `json:"missing,omitempty"`
}

// FlowClock says which tick it is, and how long one is.
type FlowClock struct {
	Now  uint32
	Tick time.Duration
}

// FlowReader reads the pinned flows.
type FlowReader struct {
	next       *ebpf.Map // replaces open while that grows; nil otherwise
	open, half *ebpf.Map
	clock      *FlowClock
	buffer     maps.FlowBuffer
}

// OpenFlows opens the flows pinned in dir, read-only. Without a clock, idle times are unknown. The
// caller must close the reader.
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

// Close closes the maps of flows.
func (r *FlowReader) Close() error {
	return errors.Join(r.next.Close(), r.open.Close(), r.half.Close())
}

// Each calls visit for every flow that passes the filter, with its keys and whether it is half
// open. It holds only some rows in memory at a time. Flows that come, go or become established
// meanwhile may be missed or visited twice; flows that move to a larger map are visited once. An
// error of visit ends the iteration.
func (r *FlowReader) Each(filter *FlowFilter, visit func(f *Flow, keys maps.Doomed, half bool) error) error {
	// Rows that are carried over meanwhile also stay in the old map, so reading that map first
	// misses nothing.
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

// isElsewhere reports whether a row of one map is superseded by one in another: the programs look
// into the larger map first.
func (r *FlowReader) isElsewhere(m *ebpf.Map, key maps.Flow) (bool, error) {
	if m != r.open || r.next == nil {
		return false, nil
	}
	_, there, err := maps.LookupFlow(r.next, key)
	return there, err
}

// find looks a key up in every map where the rows of m may be by now.
func (r *FlowReader) find(m *ebpf.Map, key maps.Flow) (row maps.FlowRow, there bool, err error) {
	if m != r.half && r.next != nil {
		if row, there, err = maps.LookupFlow(r.next, key); err != nil || there {
			return row, there, err
		}
		m = r.open
	}
	return maps.LookupFlow(m, key)
}

// visit visits a flow once: from the row of its request, or from that of its reply if there is no
// other.
func (r *FlowReader) visit(m *ebpf.Map, filter *FlowFilter, key maps.Flow, row maps.FlowRow, visit func(*Flow, maps.Doomed) error) error {
	d := maps.Doomed{Request: key, Reply: maps.BackOf(key, &row)}
	reply := row.Kind&maps.FlowReply != 0
	if reply {
		d.Request, d.Reply = d.Reply, d.Request
	}
	f := Flow{
		Protocol: FlowProtocol(key.Proto), Kind: maps.FlowKindOf(row.Kind).String(),
		Client: maps.FlowSource(d.Request), Frontend: maps.FlowDestination(d.Request),
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
	// A row that leads elsewhere belongs to another flow.
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

// idle returns the time since the rows were last used. The request row of a half-open TCP
// connection has no time.
func (r *FlowReader) idle(rows []maps.FlowRow, proto uint8) *int {
	if r.clock == nil {
		return nil
	}
	var least *int
	for _, row := range rows {
		half := row.State == maps.FlowNew || row.State == maps.FlowAnswered
		if half && proto == uint8(model.TCP) && row.Kind&maps.FlowReply == 0 {
			continue
		}
		ticks := max(0, int32(r.clock.Now-row.Seen))
		if seconds := int((time.Duration(ticks) * r.clock.Tick).Round(time.Second).Seconds()); least == nil || seconds < *least {
			least = &seconds
		}
	}
	return least
}

// FlowProtocol returns the name of the protocol of a flow, or its number.
func FlowProtocol(proto uint8) string {
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

// FlowFilter passes the flows that match all fields that are set.
type FlowFilter struct {
	Src   netip.Prefix // the client
	Dst   netip.Prefix // the frontend or the backend
	Port  uint16       // of the frontend or the backend
	Proto string       // "tcp", "udp", "sctp", "icmp", "icmp6" or a number
	State string       // one of FlowStates
}

// Check returns an error if no flow can match.
func (f *FlowFilter) Check() error {
	if f.State != "" && !slices.Contains(FlowStates(), f.State) {
		return fmt.Errorf("unknown state %q: use %s", f.State, strings.Join(FlowStates(), ", "))
	}
	if number, err := strconv.ParseUint(f.Proto, 10, 8); err == nil {
		f.Proto = FlowProtocol(uint8(number))
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
