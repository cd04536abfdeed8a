package monitor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/pkg/snapshot"
)

// wordsFor is how long names are cached. Devices and maps may be replaced at any time.
const wordsFor = 2 * time.Second

// Translator translates the numbers in events into names. It is for use by one goroutine.
type Translator struct {
	dir            string
	names          Names
	hooks, reasons []string
	boot           time.Time // when the clock of events was zero

	fresh   time.Time
	devices map[uint32]string
	m       *maps.Maps
	tables  *maps.Tables
}

// Names are what only an agent knows. The functions return "" for what they do not know, and must not
// take long.
type Names struct {
	Pod  func(netip.Addr) string // that has an address
	Rule func(uint32) string     // in words, by its number
}

// NewTranslator returns a Translator that takes names of services from the maps pinned in dir. The
// caller must close the Translator.
func NewTranslator(dir string, names Names) (*Translator, error) {
	w := &Translator{dir: dir, names: names}
	var err error
	if w.hooks, w.reasons, err = reasons.Words(); err != nil {
		return nil, err
	}
	var mono unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono); err != nil {
		return nil, fmt.Errorf("read the clock of events: %w", err)
	}
	w.boot = time.Now().Add(-time.Duration(mono.Nano()))
	return w, nil
}

// Close closes the maps.
func (w *Translator) Close() error {
	var errs []error
	if w.tables != nil {
		errs = append(errs, w.tables.Close())
	}
	if w.m != nil {
		errs = append(errs, w.m.Close())
	}
	w.m, w.tables = nil, nil
	return errors.Join(errs...)
}

// refresh looks names up again if they are old. Names that cannot be read are left out: an event
// without names is better than none.
func (w *Translator) refresh() {
	if time.Since(w.fresh) < wordsFor {
		return
	}
	w.fresh, w.devices = time.Now(), map[uint32]string{}
	if list, err := net.Interfaces(); err == nil {
		for _, d := range list {
			w.devices[uint32(d.Index)] = d.Name
		}
	}
	_ = w.Close()
	m, err := maps.Open(w.dir, true)
	if err != nil {
		return
	}
	tables, err := m.Tables()
	if err != nil {
		_ = m.Close()
		return
	}
	w.m, w.tables = m, tables
}

// Event translates an event.
func (w *Translator) Event(e *maps.Event) Event {
	w.refresh()
	event := Event{
		Time: w.boot.Add(time.Duration(e.At)), Hook: wordOf(w.hooks, e.Hook), Direction: "in", Device: w.device(e.Ifindex),
		Protocol: eventProtocol(e.Flow.Proto), Source: maps.FlowSource(e.Flow), Destination: maps.FlowDestination(e.Flow), Bytes: e.Len,
	}
	if e.IsLeaving != 0 {
		event.Direction = "out"
	}
	if e.Flow.Proto == unix.IPPROTO_TCP {
		event.TCPFlags = tcpFlags(e.TcpFlags)
	}
	frontend := event.Destination
	if to, ok := maps.EventDestination(e); ok {
		event.NewSource, event.NewDestination = maps.EventSource(e), to
		if e.Out != 0 {
			event.Way = w.device(e.Out)
		}
	}
	backend := event.NewDestination
	if e.Kind&maps.FlowReply != 0 {
		frontend, backend = event.NewSource, event.Source
	}
	event.Service = w.service(frontend, e.Flow.Proto)
	if backend.IsValid() {
		event.Backend = w.names.Pod(backend.Addr())
	}
	if e.Rule != 0 {
		event.Rule, event.Policy = e.Rule, w.names.Rule(e.Rule)
	}
	switch {
	case e.Reason == 0:
		event.Verdict, event.Sample = EventBackend, max(1, e.Sample)
	case e.IsDropped != 0:
		event.Verdict, event.Reason = EventDrop, wordOf(w.reasons, e.Reason)
	default:
		event.Verdict, event.Reason = EventDegraded, wordOf(w.reasons, e.Reason)
	}
	return event
}

// wordOf returns the word at index of, or the index as text if the list is too short.
func wordOf(words []string, of uint8) string {
	if int(of) < len(words) {
		return words[of]
	}
	return strconv.Itoa(int(of))
}

func (w *Translator) device(index uint32) string {
	if name, ok := w.devices[index]; ok {
		return name
	}
	return "#" + strconv.FormatUint(uint64(index), 10)
}

// service returns the name of the service that has a frontend, or "".
func (w *Translator) service(at netip.AddrPort, proto uint8) string {
	if w.tables == nil || !at.IsValid() {
		return ""
	}
	key := maps.SvcKey{Addr: maps.AddrOf(at.Addr()), Port: maps.PortOf(at.Port()), Proto: proto}
	row, ok := w.frontend(key)
	if !ok {
		unspecified := netip.IPv6Unspecified()
		if at.Addr().Is4() {
			unspecified = netip.IPv4Unspecified()
		}
		key.Addr = maps.AddrOf(unspecified)
		row, ok = w.frontend(key)
	}
	if !ok || int(row.Service) >= len(w.tables.Names) {
		return ""
	}
	return snapshot.NameOf(&w.tables.Names[row.Service])
}

func (w *Translator) frontend(key maps.SvcKey) (row maps.Svc, ok bool) {
	return row, w.m.Svcs.Lookup(&key, &row) == nil
}

func eventProtocol(proto uint8) string {
	switch proto {
	case unix.IPPROTO_ICMP:
		return "icmp"
	case unix.IPPROTO_ICMPV6:
		return "icmp6"
	}
	return snapshot.FlowProtocol(proto)
}

// tcpFlags names the flags that matter for the state of a connection.
func tcpFlags(flags uint8) string {
	var words []string
	for i, word := range []string{"FIN", "SYN", "RST", "PSH", "ACK"} {
		if flags>>i&1 != 0 {
			words = append(words, word)
		}
	}
	return strings.Join(words, ",")
}
