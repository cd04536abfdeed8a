package monitor

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/reasons"
)

// The verdicts of an Event.
const (
	EventDrop     = "drop"     // dropped for the reason
	EventDegraded = "degraded" // passed on in a degraded way for the reason
	EventBackend  = "backend"  // the first packet of a flow, which gets a backend
)

// Event is one report to a monitor: what happened to a packet or, if only Lost is set, that events
// were lost.
type Event struct {
	Time      time.Time `json:"time,omitzero"`
	Hook      string    `json:"hook,omitempty"`      // "tc" or "xdp"
	Direction string    `json:"direction,omitempty"` // "in" or "out" of the node
	Device    string    `json:"device,omitempty"`
	Verdict   string    `json:"verdict,omitempty"` // "drop", "degraded" or "backend"
	Reason    string    `json:"reason,omitempty"`  // as "fairlead drops" shows it
	Protocol  string    `json:"protocol,omitempty"`
	TCPFlags  string    `json:"tcpFlags,omitempty"` // "SYN,ACK"
	// Source and Destination are the packet's addresses on arrival. The port is 0 if the protocol
	// has none.
	Source      netip.AddrPort `json:"source,omitzero"`
	Destination netip.AddrPort `json:"destination,omitzero"`
	// NewSource and NewDestination are the rewritten addresses, once they are decided.
	NewSource      netip.AddrPort `json:"newSource,omitzero"`
	NewDestination netip.AddrPort `json:"newDestination,omitzero"`
	Service        string         `json:"service,omitempty"`
	Backend        string         `json:"backend,omitempty"` // the name of the backend's pod, if known
	Way            string         `json:"way,omitempty"`     // the device it leaves by; empty if the stack finds the route
	Bytes          uint32         `json:"bytes,omitempty"`   // of the frame; only for drops
	Sample         uint32         `json:"sample,omitempty"`  // how many choices of a backend this event stands for
	Rule           uint32         `json:"rule,omitempty"`    // the number of the rule by which policies deny it
	Policy         string         `json:"policy,omitempty"`  // that rule in words, if its number is known
	// Lost is how many events were lost since the last line, for lack of room or time.
	Lost uint64 `json:"lost,omitempty"`
	// End says why no more events come. It is reported as an error instead of shown.
	End string `json:"end,omitempty"`
}

// Filter says which events a monitor wants.
type Filter struct {
	Reasons []string     // of drops; nil for all
	Addr    netip.Prefix // matches any address of a packet, original or rewritten; invalid for any
	Port    uint16       // likewise; 0 for any
	Sample  uint32       // one of how many choices of a backend; 0 for none
}

// Check returns an error if the filter asks for something that does not exist.
func (f *Filter) Check() error {
	var known []string
	for _, r := range reasons.All() {
		known = append(known, r.Word)
	}
	for _, word := range f.Reasons {
		if !slices.Contains(known, word) {
			return fmt.Errorf("unknown reason %q: use %s", word, strings.Join(known, ", "))
		}
	}
	return nil
}

// Values returns the filter as the parameters of a request.
func (f *Filter) Values() url.Values {
	v := url.Values{"reason": f.Reasons}
	if f.Addr.IsValid() {
		v.Set("addr", f.Addr.String())
	}
	v.Set("port", strconv.Itoa(int(f.Port)))
	v.Set("sample", strconv.FormatUint(uint64(f.Sample), 10))
	return v
}

// ParseFilter is the inverse of Values.
func ParseFilter(v url.Values) (*Filter, error) {
	f := &Filter{Reasons: v["reason"]}
	port, portErr := strconv.ParseUint(v.Get("port"), 10, 16)
	sample, sampleErr := strconv.ParseUint(v.Get("sample"), 10, 32)
	f.Port, f.Sample = uint16(port), uint32(sample)
	var addrErr error
	if text := v.Get("addr"); text != "" {
		f.Addr, addrErr = netip.ParsePrefix(text)
	}
	if err := errors.Join(portErr, sampleErr, addrErr, f.Check()); err != nil {
		return nil, fmt.Errorf("read filter: %w", err)
	}
	return f, nil
}

// Watch returns the request for the programs.
func (f *Filter) Watch() (w maps.Watch, err error) {
	_, reasons, err := reasons.Words()
	if err != nil {
		return w, err
	}
	for i, word := range reasons {
		if i > 0 && (f.Reasons == nil || slices.Contains(f.Reasons, word)) {
			w.Reasons |= 1 << i
		}
	}
	if f.Sample > 0 {
		w.Reasons |= maps.ChoiceBit
	}
	w.Sample, w.Port = f.Sample, maps.PortOf(f.Port)
	if f.Addr.IsValid() {
		maps.SetWatchAddr(&w, f.Addr)
	}
	return w, nil
}

// Passes reports whether an event passes the filter, apart from sampling.
func (f *Filter) Passes(e *Event) bool {
	ends := []netip.AddrPort{e.Source, e.Destination, e.NewSource, e.NewDestination}
	if e.Verdict == EventBackend {
		if f.Sample == 0 {
			return false
		}
	} else if f.Reasons != nil && !slices.Contains(f.Reasons, e.Reason) {
		return false
	}
	in := !f.Addr.IsValid() || slices.ContainsFunc(ends, func(a netip.AddrPort) bool { return f.Addr.Contains(a.Addr()) })
	return in && (f.Port == 0 || slices.ContainsFunc(ends, func(a netip.AddrPort) bool { return a.Port() == f.Port }))
}

// WriteHeader writes the column titles for WriteText.
func WriteHeader(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%-15s %-4s %-3s %-10s %-20s %s\n", "TIME", "HOOK", "DIR", "DEVICE", "WHAT", "PACKET")
	return err
}

// WriteText writes the event as a line of text.
func (e *Event) WriteText(w io.Writer) error {
	if e.Lost > 0 {
		_, err := fmt.Fprintf(w, "%d events lost\n", e.Lost)
		return err
	}
	what := e.Verdict
	if e.Reason != "" {
		what += " " + e.Reason
	}
	_, err := fmt.Fprintf(w, "%-15s %-4s %-3s %-10s %-20s %s\n",
		e.Time.Local().Format("15:04:05.000000"), e.Hook, e.Direction, e.Device, what, e.packetText())
	return err
}

func (e *Event) packetText() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s -> %s", e.Protocol, e.Source, e.Destination)
	if e.TCPFlags != "" {
		fmt.Fprintf(&b, " %s", e.TCPFlags)
	}
	if e.NewDestination.IsValid() {
		fmt.Fprintf(&b, " => %s -> %s", e.NewSource, e.NewDestination)
	}
	for _, word := range []struct{ name, value string }{{"service", e.Service}, {"backend", e.Backend}, {"way", e.Way}} {
		if word.value != "" {
			fmt.Fprintf(&b, " %s=%s", word.name, word.value)
		}
	}
	if e.Sample > 1 {
		fmt.Fprintf(&b, " (1 of %d)", e.Sample)
	}
	if e.Rule != 0 {
		fmt.Fprintf(&b, " by %s", cmp.Or(e.Policy, fmt.Sprintf("rule %d", e.Rule)))
	}
	return b.String()
}
