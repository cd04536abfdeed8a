package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	most    = "/proc/sys/net/netfilter/nf_conntrack_max"
	timeout = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"
)

// What nl has no names for.
const (
	natSrc, natDst = 6, 13 // CTA_

	minIP4, maxIP4, natProto, minIP6, maxIP6 = 1, 2, 3, 4, 5 // CTA_NAT_
	minPort, maxPort                         = 1, 2          // CTA_PROTONAT_PORT_

	flagsOriginal, flagsReply = 4, 5 // CTA_PROTOINFO_TCP_FLAGS_

	established = 3    // TCP_CONNTRACK_ESTABLISHED
	liberal     = 0x08 // IP_CT_TCP_FLAG_BE_LIBERAL: a packet may be beyond a window of which nothing is known

	seenReply, assured, confirmed = 1 << 1, 1 << 2, 1 << 3 // IPS_
)

// Writer adds records, by which the stack goes on with connections that somebody else has translated so far.
type Writer struct {
	socket  map[int]*nl.SocketHandle
	seconds uint32 // for which a connection may be idle
	room    int    // for more records
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
	seconds, err := read(timeout)
	if err != nil {
		return nil, err
	}
	socket, err := nl.GetNetlinkSocketAt(-1, -1, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netfilter's records: %w", err)
	}
	room := max(limit-known, 0) / 2 // the rest is for what comes
	if limit == 0 {
		room = int(^uint(0) >> 1)
	}
	return &Writer{map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}, uint32(seconds), room}, nil
}

var (
	// ErrFull is that of a table with no room for more.
	ErrFull = errors.New("netfilter's table of connections has no room; see net.netfilter.nf_conntrack_max")
	// ErrTaken is that of a connection whose server takes it for another one that netfilter knows.
	ErrTaken = errors.New("netfilter knows another connection by the same port")
)

// tries is how often a connection is added: a packet may come in between, of which the stack makes a record that is in the way.
const tries = 3

// Add gives the stack an established connection.
func (w *Writer) Add(c Connection) (err error) {
	if w.room == 0 {
		return ErrFull
	}
	family := uint8(unix.AF_INET)
	if c.Client.Addr().Is6() {
		family = unix.AF_INET6
	}
	for range tries {
		// Packets that pass the stack translated are to it a connection of their own, and of the client's port it may know an earlier one.
		err = errors.Join(w.remove(family, c.Seen, c.Server), w.remove(family, c.Client, c.Dialled))
		if err == nil {
			err = w.do(family, nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL, w.record(c))
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
func (w *Writer) remove(family uint8, sender, receiver netip.AddrPort) error {
	err := w.do(family, nl.IPCTNL_MSG_CT_DELETE, 0, []*nl.RtAttr{tupleOf(nl.CTA_TUPLE_ORIG, sender, receiver)})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Close lets go of the records.
func (w *Writer) Close() { w.socket[unix.NETLINK_NETFILTER].Close() }

func (w *Writer) do(family uint8, message, flags int, attributes []*nl.RtAttr) error {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|message, flags|unix.NLM_F_ACK)
	req.Sockets = w.socket
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family})
	for _, a := range attributes {
		req.AddData(a)
	}
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

// record is what the kernel is told. It finds the translated reply by itself. Both ends are given, even if one is as before: what is in the
// way then is an error, and not a reason to take another port.
func (w *Writer) record(c Connection) []*nl.RtAttr {
	info := nested(nl.CTA_PROTOINFO)
	state := info.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_PROTOINFO_TCP, nil)
	state.AddRtAttr(nl.CTA_PROTOINFO_TCP_STATE, []byte{established})
	state.AddRtAttr(flagsOriginal, []byte{liberal, liberal})
	state.AddRtAttr(flagsReply, []byte{liberal, liberal})
	return []*nl.RtAttr{
		tupleOf(nl.CTA_TUPLE_ORIG, c.Client, c.Dialled),
		tupleOf(nl.CTA_TUPLE_REPLY, c.Dialled, c.Client),
		nl.NewRtAttr(nl.CTA_STATUS, nl.BEUint32Attr(seenReply|assured|confirmed)),
		nl.NewRtAttr(nl.CTA_TIMEOUT, nl.BEUint32Attr(w.seconds)),
		info,
		translation(natDst, c.Server),
		translation(natSrc, c.Seen),
	}
}

// tupleOf says who sends to whom.
func tupleOf(kind int, sender, receiver netip.AddrPort) *nl.RtAttr {
	src, dst := ip4Src, ip4Dst
	if sender.Addr().Is6() {
		src, dst = ip6Src, ip6Dst
	}
	tuple := nested(kind)
	addrs := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	addrs.AddRtAttr(src, sender.Addr().AsSlice())
	addrs.AddRtAttr(dst, receiver.Addr().AsSlice())
	ports := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	ports.AddRtAttr(protoNum, []byte{unix.IPPROTO_TCP})
	ports.AddRtAttr(protoSrc, port(sender))
	ports.AddRtAttr(protoDst, port(receiver))
	return tuple
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

func nested(kind int) *nl.RtAttr { return nl.NewRtAttr(unix.NLA_F_NESTED|kind, nil) }

func port(a netip.AddrPort) []byte { return binary.BigEndian.AppendUint16(nil, a.Port()) }

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
