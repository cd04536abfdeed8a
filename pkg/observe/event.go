package observe

import (
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
)

// What becomes of a packet that a monitor is told of.
const (
	EventDrop    = "drop"    // for the reason
	EventCarried = "carried" // on, with less than there should be, for the reason
	EventBackend = "backend" // it is the first of a flow, and gets a backend
)

// Event is something that monitors are told: what became of a packet, or, with nothing else set, that events were lost.
type Event struct {
	Time      time.Time `json:"time,omitzero"`
	Hook      string    `json:"hook,omitempty"`      // "tc" or "xdp"
	Direction string    `json:"direction,omitempty"` // "in" or "out" of the node
	Device    string    `json:"device,omitempty"`
	Verdict   string    `json:"verdict,omitempty"` // "drop", "carried" or "backend"
	Reason    string    `json:"reason,omitempty"`  // as "fairlead drops" has it
	Protocol  string    `json:"protocol,omitempty"`
	TCPFlags  string    `json:"tcpFlags,omitempty"` // "SYN,ACK"
	// Source and Destination are those of the packet as it came; the port is 0 where it has none.
	Source      netip.AddrPort `json:"source,omitzero"`
	Destination netip.AddrPort `json:"destination,omitzero"`
	// NewSource and NewDestination are those that it gets, where that was decided.
	NewSource      netip.AddrPort `json:"newSource,omitzero"`
	NewDestination netip.AddrPort `json:"newDestination,omitzero"`
	Service        string         `json:"service,omitempty"`
	Backend        string         `json:"backend,omitempty"` // the name of its pod, where it is known
	Way            string         `json:"way,omitempty"`     // the device that it leaves by; without one the stack finds the way
	Bytes          uint32         `json:"bytes,omitempty"`   // of the frame; of drops alone
	Sample         uint32         `json:"sample,omitempty"`  // the choice of a backend stands for so many
	// Lost is how many events there was no room or no time for since the last line.
	Lost uint64 `json:"lost,omitempty"`
	// End says why nothing more comes. It is not shown but told as an error.
	End string `json:"end,omitempty"`
}

// EventFilter says what a monitor wants to be told of.
type EventFilter struct {
	Reasons []string     // of drops; nil for all
	Addr    netip.Prefix // of any address of a packet, before or after; not valid for any
	Port    uint16       // likewise; 0 for any
	Sample  uint32       // one choice of a backend in so many; 0 for none
}

// Check returns an error for what nobody can be told.
func (f *EventFilter) Check() error {
	var known []string
	for _, r := range Reasons() {
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
func (f *EventFilter) Values() url.Values {
	v := url.Values{"reason": f.Reasons}
	if f.Addr.IsValid() {
		v.Set("addr", f.Addr.String())
	}
	v.Set("port", strconv.Itoa(int(f.Port)))
	v.Set("sample", strconv.FormatUint(uint64(f.Sample), 10))
	return v
}

// ParseEventFilter is the reverse of Values.
func ParseEventFilter(v url.Values) (*EventFilter, error) {
	f := &EventFilter{Reasons: v["reason"]}
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

// Watch returns what the programs are to be asked for.
func (f *EventFilter) Watch() (w maps.Watch, err error) {
	_, reasons, err := counterWords()
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

// Passes reports whether the filter lets an event pass, but for how many of the choices it wants.
func (f *EventFilter) Passes(e *Event) bool {
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

// WriteEventHeader writes what stands over the lines of WriteText.
func WriteEventHeader(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%-15s %-4s %-3s %-10s %-20s %s\n", "TIME", "HOOK", "DIR", "DEVICE", "WHAT", "PACKET")
	return err
}

// WriteText writes the event as a line for people.
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
	return b.String()
}
