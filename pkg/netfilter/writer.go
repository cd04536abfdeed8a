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

// What nl has no names for.
const (
	natSrc, natDst = 6, 13 // CTA_

	minIP4, maxIP4, natProto, minIP6, maxIP6 = 1, 2, 3, 4, 5 // CTA_NAT_
	minPort, maxPort                         = 1, 2          // CTA_PROTONAT_PORT_

	flagsOriginal, flagsReply = 4, 5 // CTA_PROTOINFO_TCP_FLAGS_

	established = 3    // TCP_CONNTRACK_ESTABLISHED
	liberal     = 0x08 // IP_CT_TCP_FLAG_BE_LIBERAL: a packet may be beyond a window of which nothing is known
)

// Writer adds records, by which the stack goes on with connections that somebody else has translated so far.
type Writer struct {
	requests
	tcp, stream, udp int // seconds for which a connection may be idle, datagrams that go on, and others
	room             int // for more records
}

// NewWriter returns one for the network namespace of its thread; nil if nobody there tracks connections, or has any.
func NewWriter() (*Writer, error) {
	known, err := read(count)
	if err != nil || known == 0 {
		return nil, err
	}
	limit, err := read(most)
	if err != nil {
		return nil, err
	}
	w := &Writer{room: max(limit-known, 0) / 2} // the rest is for what comes
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

// Idle returns how long datagrams that go on may stay away.
func (w *Writer) Idle() time.Duration { return time.Duration(w.stream) * time.Second }

var (
	// ErrFull is that of a table with no room for more.
	ErrFull = errors.New("netfilter's table of connections has no room; see net.netfilter.nf_conntrack_max")
	// ErrTaken is that of a connection whose server takes it for another one that netfilter knows.
	ErrTaken = errors.New("netfilter knows another connection by the same port")
)

// tries is how often a connection is added: a packet may come in between, of which the stack makes a record that is in the way.
const tries = 3

// Add gives the stack an established connection, or datagrams that were answered.
func (w *Writer) Add(c Connection) (err error) {
	if w.room == 0 {
		return ErrFull
	}
	for range tries {
		// Packets that pass the stack translated are to it a connection of their own, and of the client's port it may know an earlier one.
		err = errors.Join(w.remove(c.Proto, c.Seen, c.Server), w.remove(c.Proto, c.Client, c.Dialled))
		if err == nil {
			_, err = w.do(family(c.Client), nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, w.record(c))
		}
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
		return fmt.Errorf("add netfilter's record of the connection of %s to %s: %w", c.Client, c.Dialled, err)
	}
	w.room--
	return nil
}

// remove removes the record of packets, if there is one.
func (w *Writer) remove(proto uint8, sender, receiver netip.AddrPort) error {
	_, err := w.do(family(sender), nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, []*nl.RtAttr{tupleOf(nl.CTA_TUPLE_ORIG, proto, sender, receiver)})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// record is what the kernel is told. It finds the translated reply by itself. Both ends are given, even if one is as before: what is in the
// way then is an error, and not a reason to take another port.
func (w *Writer) record(c Connection) []*nl.RtAttr {
	status, seconds := uint32(seenReply|assured|confirmed), w.tcp
	switch {
	case c.Proto == unix.IPPROTO_UDP && c.Lasting:
		seconds = w.stream
	case c.Proto == unix.IPPROTO_UDP:
		status, seconds = seenReply|confirmed, w.udp
	}
	attributes := []*nl.RtAttr{
		tupleOf(nl.CTA_TUPLE_ORIG, c.Proto, c.Client, c.Dialled),
		tupleOf(nl.CTA_TUPLE_REPLY, c.Proto, c.Dialled, c.Client),
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

// translation is to one address and one port.
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

// read returns the number in a file of the kernel's; zero if there is no such file.
func read(path string) (int, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read what netfilter has room for: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read what netfilter has room for: %w", err)
	}
	return n, nil
}
