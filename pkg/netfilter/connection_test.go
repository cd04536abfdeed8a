package netfilter

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nest puts attributes into one of a kind.
func nest(kind int, parts ...[]byte) []byte {
	var inner []byte
	for _, p := range parts {
		inner = append(inner, p...)
	}
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(inner)))
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))
	b = append(b, inner...)
	return append(b, make([]byte, -len(b)&3)...)
}

// record is one as the kernel writes it.
func record(from, to netip.AddrPort, proto, state byte, status uint32, more ...[]byte) []byte {
	src, dst := ip4Src, ip4Dst
	if from.Addr().Is6() {
		src, dst = ip6Src, ip6Dst
	}
	port := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	msg := []byte{0, 0, 0, 0}
	for _, part := range append([][]byte{
		nest(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG,
			nest(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nest(src, from.Addr().AsSlice()), nest(dst, to.Addr().AsSlice())),
			nest(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nest(protoNum, []byte{proto}), nest(protoSrc, port(from.Port())), nest(protoDst, port(to.Port())))),
		nest(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, status)),
		nest(unix.NLA_F_NESTED|nl.CTA_PROTOINFO, nest(unix.NLA_F_NESTED|nl.CTA_PROTOINFO_TCP, nest(nl.CTA_PROTOINFO_TCP_STATE, []byte{state}))),
	}, more...) {
		msg = append(msg, part...)
	}
	return msg
}

func TestParse(t *testing.T) {
	client, port := netip.MustParseAddrPort("192.0.2.9:40000"), netip.MustParseAddrPort("192.0.2.1:30001")
	client6, port6 := netip.MustParseAddrPort("[2001:db8::9]:40000"), netip.MustParseAddrPort("[2001:db8::1]:30001")
	const established, confirmed = 3, 1 << 3
	for name, c := range map[string]struct {
		msg  []byte
		want Connection
		ok   bool
	}{
		"IPv4":           {record(client, port, unix.IPPROTO_TCP, established, confirmed|dstNAT), Connection{client, port}, true},
		"IPv6":           {record(client6, port6, unix.IPPROTO_TCP, established, confirmed|dstNAT), Connection{client6, port6}, true},
		"no translation": {record(client, port, unix.IPPROTO_TCP, established, confirmed), Connection{}, false},
		"UDP":            {record(client, port, unix.IPPROTO_UDP, established, confirmed|dstNAT), Connection{}, false},
		"over":           {record(client, port, unix.IPPROTO_TCP, timeWait, confirmed|dstNAT), Connection{}, false},
		"reset":          {record(client, port, unix.IPPROTO_TCP, closed, confirmed|dstNAT), Connection{}, false},
		"another zone":   {record(client, port, unix.IPPROTO_TCP, established, dstNAT, nest(nl.CTA_ZONE, []byte{0, 1})), Connection{}, false},
	} {
		if got, ok := parse(c.msg); ok != c.ok || got != c.want {
			t.Errorf("%s: %v, %v; want %v, %v", name, got, ok, c.want, c.ok)
		}
		for n := range c.msg { // what is cut off, or has a length of its own, is read no further than it goes
			cut := append([]byte(nil), c.msg...)
			cut[n] = 0xff
			parse(cut)
			parse(c.msg[:n:n])
		}
	}
}
