package netfilter

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	settings = "/proc/sys/net/netfilter/"
	most     = settings + "nf_conntrack_max"

	timeoutTCP    = settings + "nf_conntrack_tcp_timeout_established"
	timeoutStream = settings + "nf_conntrack_udp_timeout_stream"
	timeoutUDP    = settings + "nf_conntrack_udp_timeout"
)

// Constants that package nl lacks.
const (
	natSrc, natDst = 6, 13 // CTA_

	minIP4, maxIP4, natProto, minIP6, maxIP6 = 1, 2, 3, 4, 5 // CTA_NAT_
	minPort, maxPort                         = 1, 2          // CTA_PROTONAT_PORT_

	flagsOriginal, flagsReply = 4, 5 // CTA_PROTOINFO_TCP_FLAGS_

	established = 3    // TCP_CONNTRACK_ESTABLISHED
	liberal     = 0x08 // IP_CT_TCP_FLAG_BE_LIBERAL: accept packets outside of the window, which is unknown
)

// Writer adds records, with which the stack takes over connections that somebody else has
// translated so far.
type Writer struct {
	requests
	tcp, stream, udp int // idle timeouts in seconds: TCP, lasting UDP, other UDP
	room             int // how many more records may be added
}

// NewWriter returns a Writer for the network namespace of the calling thread, or nil if there are
// no records.
func NewWriter() (*Writer, error) {
	known, err := read(count)
	if err != nil || known == 0 {
		return nil, err
	}
	limit, err := read(most)
	if err != nil {
		return nil, err
	}
	w := &Writer{room: max(limit-known, 0) / 2} // the rest is for new connections
	if limit == 0 {
		w.room = int(^uint(0) >> 1)
	}
	for path, seconds := range map[string]*int{timeoutTCP: &w.tcp, timeoutStream: &w.stream, timeoutUDP: &w.udp} {
		if *seconds, err = read(path); err != nil {
			return nil, err
		}
	}
	if w.requests, err = newRequests(); err != nil {
		return nil, err
	}
	return w, nil
}

// Idle returns the timeout of a lasting UDP exchange.
func (w *Writer) Idle() time.Duration { return time.Duration(w.stream) * time.Second }

var (
	// ErrFull is returned if the table has no room for more records.
	ErrFull = errors.New("netfilter's connection table has no room left; raise net.netfilter.nf_conntrack_max")
	// ErrTaken is returned for a connection that its server could not tell from another one that
	// netfilter knows.
	ErrTaken = errors.New("netfilter has another connection with the same port")
)

// tries is how often Add tries to add a record. After the first time it removes what is in the way.
// A packet may arrive in between, of which the stack makes another such record.
const tries = 4

// Add adds an established connection, or a UDP exchange that was answered.
func (w *Writer) Add(c Connection) (err error) {
	if w.room == 0 {
		return ErrFull
	}
	for n := range tries {
		if n > 0 {
			// The stack tracks packets that pass it translated as a connection of their own, and may
			// know an earlier connection of the client's port.
			if err = errors.Join(w.remove(c.Proto, c.Seen, c.Server), w.remove(c.Proto, c.Client, c.Dialed), w.removeBegun(c.Proto, c.Server, c.Seen)); err != nil {
				break
			}
		}
		_, err = w.do(family(c.Client), nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, w.record(c))
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.ENOMEM):
		return ErrFull
	case errors.Is(err, unix.EEXIST):
		return ErrTaken
	case err != nil:
		return fmt.Errorf("add netfilter's record of the connection of %s to %s: %w", c.Client, c.Dialed, err)
	}
	w.room--
	return nil
}

// remove removes the record of these packets, if there is one.
func (w *Writer) remove(proto uint8, sender, receiver netip.AddrPort) error {
	_, err := w.do(family(sender), nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, []*nl.RtAttr{tupleOf(nl.CTA_TUPLE_ORIG, proto, sender, receiver)})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// removeBegun removes the record of these packets if the stack took the first of them, which the
// server sent, for the beginning of a connection: it may have translated that as it does what pods
// send to others.
func (w *Writer) removeBegun(proto uint8, sender, receiver netip.AddrPort) error {
	found, err := w.do(family(sender), nl.IPCTNL_MSG_CT_GET, unix.NLM_F_ACK, []*nl.RtAttr{tupleOf(nl.CTA_TUPLE_ORIG, proto, sender, receiver)})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	for _, msg := range found {
		if from, to, _, ok := parseTuple(attribute(msg[min(nl.SizeofNfgenmsg, len(msg)):], nl.CTA_TUPLE_ORIG)); ok && from == sender && to == receiver {
			return errors.Join(err, w.remove(proto, sender, receiver))
		}
	}
	return err
}

// record returns the attributes of a new record. The kernel derives the translated reply. Both ends
// are given even if one is unchanged, so that a conflict is an error instead of making the kernel
// choose another port.
func (w *Writer) record(c Connection) []*nl.RtAttr {
	status, seconds := uint32(seenReply|assured|confirmed), w.tcp
	switch {
	case c.Proto == unix.IPPROTO_UDP && c.Lasting:
		seconds = w.stream
	case c.Proto == unix.IPPROTO_UDP:
		status, seconds = seenReply|confirmed, w.udp
	}
	attributes := []*nl.RtAttr{
		tupleOf(nl.CTA_TUPLE_ORIG, c.Proto, c.Client, c.Dialed),
		tupleOf(nl.CTA_TUPLE_REPLY, c.Proto, c.Dialed, c.Client),
		nl.NewRtAttr(nl.CTA_STATUS, nl.BEUint32Attr(status)),
		nl.NewRtAttr(nl.CTA_TIMEOUT, nl.BEUint32Attr(uint32(seconds))),
		translation(natDst, c.Server),
		translation(natSrc, c.Seen),
	}
	if c.Proto != unix.IPPROTO_TCP {
		return attributes
	}
	info := nested(nl.CTA_PROTOINFO)
	state := info.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_PROTOINFO_TCP, nil)
	state.AddRtAttr(nl.CTA_PROTOINFO_TCP_STATE, []byte{established})
	state.AddRtAttr(flagsOriginal, []byte{liberal, liberal})
	state.AddRtAttr(flagsReply, []byte{liberal, liberal})
	return append(attributes, info)
}

// translation returns the attribute that translates to exactly this address and port.
func translation(kind int, to netip.AddrPort) *nl.RtAttr {
	first, last := minIP4, maxIP4
	if to.Addr().Is6() {
		first, last = minIP6, maxIP6
	}
	nat := nested(kind)
	nat.AddRtAttr(first, to.Addr().AsSlice())
	nat.AddRtAttr(last, to.Addr().AsSlice())
	ports := nat.AddRtAttr(unix.NLA_F_NESTED|natProto, nil)
	ports.AddRtAttr(minPort, port(to))
	ports.AddRtAttr(maxPort, port(to))
	return nat
}

// read returns the number in a file of the kernel's, or 0 if it does not exist.
func read(path string) (int, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the size of netfilter's connection table: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read the size of netfilter's connection table: %w", err)
	}
	return n, nil
}
