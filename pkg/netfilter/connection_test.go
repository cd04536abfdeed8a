package netfilter

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nest returns an attribute that contains others.
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

// tuple returns the attribute for packets of a protocol from one endpoint to another.
func tuple(kind int, from, to netip.AddrPort, proto byte) []byte {
	src, dst := ip4Src, ip4Dst
	if from.Addr().Is6() {
		src, dst = ip6Src, ip6Dst
	}
	port := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	return nest(unix.NLA_F_NESTED|kind,
		nest(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nest(src, from.Addr().AsSlice()), nest(dst, to.Addr().AsSlice())),
		nest(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nest(protoNum, []byte{proto}), nest(protoSrc, port(from.Port())), nest(protoDst, port(to.Port()))))
}

// record returns a record as the kernel writes it.
func record(c Connection, proto, state byte, status uint32, more ...[]byte) []byte {
	msg := []byte{0, 0, 0, 0}
	for _, part := range append([][]byte{
		tuple(nl.CTA_TUPLE_ORIG, c.Client, c.Dialed, proto), tuple(nl.CTA_TUPLE_REPLY, c.Server, c.Seen, proto),
		nest(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, status)),
		nest(unix.NLA_F_NESTED|nl.CTA_PROTOINFO, nest(unix.NLA_F_NESTED|nl.CTA_PROTOINFO_TCP, nest(nl.CTA_PROTOINFO_TCP_STATE, []byte{state}))),
	}, more...) {
		msg = append(msg, part...)
	}
	return msg
}

func TestParse(t *testing.T) {
	at := netip.MustParseAddrPort
	is := Connection{
		Client: at("192.0.2.9:40000"), Dialed: at("192.0.2.1:30001"), Seen: at("192.0.2.1:11730"), Server: at("10.1.0.2:8080"), Proto: unix.IPPROTO_TCP,
	}
	is6 := Connection{
		Client: at("[2001:db8::9]:40000"), Dialed: at("[2001:db8::1]:30001"), Seen: at("[2001:db8::9]:40000"), Server: at("[fd00::2]:8080"), Proto: unix.IPPROTO_TCP,
	}
	ending, asked := is, is
	ending.Ending, asked.Proto = true, unix.IPPROTO_UDP
	answered := asked
	answered.Answered = true
	lasting := answered
	lasting.Lasting = true
	for name, c := range map[string]struct {
		msg  []byte
		want Connection
		ok   bool
	}{
		"IPv4":           {record(is, unix.IPPROTO_TCP, established, confirmed|dstNAT), is, true},
		"IPv6":           {record(is6, unix.IPPROTO_TCP, established, confirmed|dstNAT), is6, true},
		"no translation": {record(is, unix.IPPROTO_TCP, established, confirmed), Connection{}, false},
		"UDP":            {record(is, unix.IPPROTO_UDP, 0, confirmed|dstNAT), asked, true},
		"UDP, answered":  {record(is, unix.IPPROTO_UDP, 0, confirmed|dstNAT|seenReply), answered, true},
		"UDP, lasting":   {record(is, unix.IPPROTO_UDP, 0, confirmed|dstNAT|seenReply|assured), lasting, true},
		"SCTP":           {record(is, unix.IPPROTO_SCTP, 0, confirmed|dstNAT), Connection{}, false},
		"one side ends":  {record(is, unix.IPPROTO_TCP, finWait, confirmed|dstNAT), ending, true},
		"both end":       {record(is, unix.IPPROTO_TCP, timeWait-1, confirmed|dstNAT), ending, true},
		"over":           {record(is, unix.IPPROTO_TCP, timeWait, confirmed|dstNAT), Connection{}, false},
		"reset":          {record(is, unix.IPPROTO_TCP, closed, confirmed|dstNAT), Connection{}, false},
		"another zone":   {record(is, unix.IPPROTO_TCP, established, dstNAT, nest(nl.CTA_ZONE, []byte{0, 1})), Connection{}, false},
	} {
		if got, ok := parse(c.msg); ok != c.ok || got != c.want {
			t.Errorf("%s: %v, %v; want %v, %v", name, got, ok, c.want, c.ok)
		}
		for n := range c.msg { // truncated and corrupted records must not be read beyond their end
			cut := append([]byte(nil), c.msg...)
			cut[n] = 0xff
			parse(cut)
			parse(c.msg[:n:n])
		}
	}
}
