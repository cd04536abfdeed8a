// Package netfilter reads from the kernel's connection tracking which connections its stack
// translates, and adds connections to it.
package netfilter

import (
	"encoding/binary"
	"iter"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Connection is a TCP connection, or a UDP exchange between two endpoints. Its client sees Client
// and Dialed, and its server sees Seen and Server, where Seen differs from Client if the source is
// translated too.
type Connection struct {
	Client, Dialed, Seen, Server netip.AddrPort
	Proto                        uint8 // IP protocol number
	Ending                       bool  // TCP: one side has sent a FIN
	Answered                     bool  // the server has sent something
	Lasting                      bool  // more than a question and its answer
}

// Constants that package nl lacks.
const (
	seenReply = 1 << 1 // IPS_SEEN_REPLY
	assured   = 1 << 2 // IPS_ASSURED; for UDP, that the exchange has lasted for two seconds
	confirmed = 1 << 3 // IPS_CONFIRMED
	dstNAT    = 1 << 5 // IPS_DST_NAT: the destination is translated

	finWait  = 4 // TCP_CONNTRACK_FIN_WAIT: from this state on, one side has sent a FIN
	timeWait = 7 // TCP_CONNTRACK_TIME_WAIT: from this state on, the connection is over
	closed   = 8

	typeMask = 0x3fff // NLA_TYPE_MASK

	ip4Src, ip4Dst, ip6Src, ip6Dst = 1, 2, 3, 4 // CTA_IP_
	protoNum, protoSrc, protoDst   = 1, 2, 3    // CTA_PROTO_
)

// parse parses a record. It returns false unless the record is of TCP or UDP, has a translated
// destination, and is not over. Records of other zones do not count, since the rules of Services do
// not apply to their packets.
func parse(msg []byte) (c Connection, ok bool) {
	if len(msg) < nl.SizeofNfgenmsg {
		return c, false
	}
	var status, state, zone, original, reply []byte
	for kind, value := range attributes(msg[nl.SizeofNfgenmsg:]) {
		switch kind {
		case nl.CTA_TUPLE_ORIG:
			original = value
		case nl.CTA_TUPLE_REPLY:
			reply = value
		case nl.CTA_STATUS:
			status = value
		case nl.CTA_ZONE:
			zone = value
		case nl.CTA_PROTOINFO:
			state = attribute(attribute(value, nl.CTA_PROTOINFO_TCP), nl.CTA_PROTOINFO_TCP_STATE)
		}
	}
	if len(zone) > 0 || len(status) != 4 || binary.BigEndian.Uint32(status)&dstNAT == 0 {
		return c, false
	}
	if len(state) == 1 && (state[0] == timeWait || state[0] == closed) {
		return c, false
	}
	bits := binary.BigEndian.Uint32(status)
	c.Ending = len(state) == 1 && state[0] >= finWait && state[0] < timeWait
	c.Answered, c.Lasting = bits&seenReply != 0, bits&assured != 0
	var back uint8
	if c.Client, c.Dialed, c.Proto, ok = parseTuple(original); ok {
		c.Server, c.Seen, back, ok = parseTuple(reply)
	}
	return c, ok && back == c.Proto
}

// parseEnds parses the addresses that send in the two directions of a record.
func parseEnds(msg []byte) (client, server netip.Addr, ok bool) {
	if len(msg) < nl.SizeofNfgenmsg {
		return client, server, false
	}
	msg = msg[nl.SizeofNfgenmsg:]
	client, _, forth := parseAddrs(attribute(msg, nl.CTA_TUPLE_ORIG))
	server, _, back := parseAddrs(attribute(msg, nl.CTA_TUPLE_REPLY))
	return client, server, forth && back
}

func parseAddrs(tuple []byte) (src, dst netip.Addr, ok bool) {
	var fromOK, toOK bool
	for kind, value := range attributes(attribute(tuple, nl.CTA_TUPLE_IP)) {
		switch kind {
		case ip4Src, ip6Src:
			src, fromOK = netip.AddrFromSlice(value)
		case ip4Dst, ip6Dst:
			dst, toOK = netip.AddrFromSlice(value)
		}
	}
	return src, dst, fromOK && toOK
}

// parseTuple parses sender, receiver and protocol.
func parseTuple(tuple []byte) (sender, receiver netip.AddrPort, by uint8, ok bool) {
	src, dst, ok := parseAddrs(tuple)
	ports := attribute(tuple, nl.CTA_TUPLE_PROTO)
	proto, from, to := attribute(ports, protoNum), attribute(ports, protoSrc), attribute(ports, protoDst)
	if !ok || len(proto) != 1 || proto[0] != unix.IPPROTO_TCP && proto[0] != unix.IPPROTO_UDP || len(from) != 2 || len(to) != 2 {
		return sender, receiver, 0, false
	}
	return netip.AddrPortFrom(src, binary.BigEndian.Uint16(from)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(to)), proto[0], true
}

// attributes iterates over the attributes in b by their types. It copies nothing, since there may
// be a million records.
func attributes(b []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			size, kind := int(binary.NativeEndian.Uint16(b)), int(binary.NativeEndian.Uint16(b[2:]))
			if size < unix.SizeofRtAttr || size > len(b) || !yield(kind&typeMask, b[unix.SizeofRtAttr:size]) {
				return
			}
			b = b[min(len(b), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
		}
	}
}

// attribute returns the first attribute of a type in b, or nil.
func attribute(b []byte, kind int) []byte {
	for k, value := range attributes(b) {
		if k == kind {
			return value
		}
	}
	return nil
}
