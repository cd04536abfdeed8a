package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// requests asks for the records of the network namespace in which it was opened.
type requests struct{ socket map[int]*nl.SocketHandle }

func newRequests() (requests, error) {
	socket, err := nl.GetNetlinkSocketAt(-1, -1, unix.NETLINK_NETFILTER)
	if err != nil {
		return requests{}, fmt.Errorf("open netfilter's records: %w", err)
	}
	return requests{map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}}, nil
}

// Close closes the socket.
func (r requests) Close() { r.socket[unix.NETLINK_NETFILTER].Close() }

func (r requests) do(family uint8, message, flags int, attributes []*nl.RtAttr) ([][]byte, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|message, flags)
	req.Sockets = r.socket
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family})
	for _, a := range attributes {
		req.AddData(a)
	}
	return req.Execute(unix.NETLINK_NETFILTER, 0)
}

// Finder looks up single records.
type Finder struct{ requests }

// NewFinder returns a Finder for the network namespace of the calling thread, or nil if there are
// no records.
func NewFinder() (*Finder, error) {
	known, err := read(count)
	if err != nil || known == 0 {
		return nil, err
	}
	requests, err := newRequests()
	if err != nil {
		return nil, err
	}
	return &Finder{requests}, nil
}

// Find returns the connection that packets from sender to receiver belong to, in either direction.
// It returns false if there is none whose destination the stack translates.
func (f *Finder) Find(proto uint8, sender, receiver netip.AddrPort) (Connection, bool, error) {
	found, err := f.do(family(sender), nl.IPCTNL_MSG_CT_GET, unix.NLM_F_ACK, []*nl.RtAttr{tupleOf(nl.CTA_TUPLE_ORIG, proto, sender, receiver)})
	if errors.Is(err, unix.ENOENT) {
		return Connection{}, false, nil
	}
	if err != nil {
		return Connection{}, false, fmt.Errorf("find netfilter's record of packets from %s to %s: %w", sender, receiver, err)
	}
	for _, msg := range found {
		if c, ok := parse(msg); ok {
			return c, true, nil
		}
	}
	return Connection{}, false, nil
}

func family(of netip.AddrPort) uint8 {
	if of.Addr().Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// tupleOf returns the attribute for packets of a protocol from sender to receiver.
func tupleOf(kind int, proto uint8, sender, receiver netip.AddrPort) *nl.RtAttr {
	src, dst := ip4Src, ip4Dst
	if sender.Addr().Is6() {
		src, dst = ip6Src, ip6Dst
	}
	tuple := nested(kind)
	addrs := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	addrs.AddRtAttr(src, sender.Addr().AsSlice())
	addrs.AddRtAttr(dst, receiver.Addr().AsSlice())
	ports := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	ports.AddRtAttr(protoNum, []byte{proto})
	ports.AddRtAttr(protoSrc, port(sender))
	ports.AddRtAttr(protoDst, port(receiver))
	return tuple
}

func nested(kind int) *nl.RtAttr { return nl.NewRtAttr(unix.NLA_F_NESTED|kind, nil) }

func port(a netip.AddrPort) []byte { return binary.BigEndian.AppendUint16(nil, a.Port()) }
