package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Constants of linux/sock_diag.h and linux/inet_diag.h that package unix lacks.
const (
	byFamily = 20 // SOCK_DIAG_BY_FAMILY
	destroy  = 21 // SOCK_DESTROY
)

const (
	requestLen = 56 // struct inet_diag_req_v2
	answerLen  = 72 // struct inet_diag_msg
)

// id identifies a socket to the kernel, in the format of struct inet_diag_sockid: both ports and
// addresses, the interface and the cookie.
type id [48]byte

// Socket is a socket as the kernel lists it. Two equal values are the same socket with the same
// peer.
type Socket struct {
	Protocol model.Protocol

	family uint8
	id     id
}

// Remote returns the address and port the socket is connected to, in the format of the maps.
func (s Socket) Remote() (maps.Addr, uint16) {
	var a maps.Addr
	dst := s.id[20:36]
	port := binary.NativeEndian.Uint16(s.id[2:])
	if s.family == unix.AF_INET {
		a.Word[2] = hostOrder(0xffff)
		a.Word[3] = binary.NativeEndian.Uint32(dst)
		return a, port
	}
	for i := range a.Word {
		a.Word[i] = binary.NativeEndian.Uint32(dst[4*i:])
	}
	return a, port
}

// Cookie returns the socket's cookie, by which the BPF programs identify it.
func (s Socket) Cookie() uint64 {
	low, high := binary.NativeEndian.Uint32(s.id[40:]), binary.NativeEndian.Uint32(s.id[44:])
	return uint64(high)<<32 | uint64(low)
}

func hostOrder(v uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return binary.NativeEndian.Uint32(b[:])
}

// swapped returns the id with source and destination exchanged.
func (i id) swapped() id {
	s := i
	copy(s[0:2], i[2:4])
	copy(s[2:4], i[0:2])
	copy(s[4:20], i[20:36])
	copy(s[20:36], i[4:20])
	return s
}

// request is a request to the kernel.
type request struct {
	kind     uint16
	flags    uint16
	family   uint8
	protocol model.Protocol
	states   uint32 // bit mask
	id       id
}

// encode returns the request as a netlink message.
func (r request) encode(seq uint32) []byte {
	order := binary.NativeEndian
	b := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+requestLen)
	order.PutUint16(b[4:], r.kind)
	order.PutUint16(b[6:], r.flags|unix.NLM_F_REQUEST)
	order.PutUint32(b[8:], seq)
	b = append(b, r.family, uint8(r.protocol), 0, 0)
	b = order.AppendUint32(b, r.states)
	b = append(b, r.id[:]...)
	order.PutUint32(b, uint32(len(b)))
	return b
}

var errShort = errors.New("the kernel's answer is truncated")

// decode reads one socket and its state.
func decode(protocol model.Protocol, answer []byte) (s Socket, state uint8, err error) {
	if len(answer) < answerLen {
		return Socket{}, 0, errShort
	}
	s = Socket{Protocol: protocol, family: answer[0]}
	copy(s.id[:], answer[4:])
	return s, answer[1], nil
}

// message is one netlink message of an answer.
type message struct {
	kind uint16
	seq  uint32
	body []byte
}

// cut splits the first message off b.
func cut(b []byte) (m message, rest []byte, err error) {
	if len(b) < unix.NLMSG_HDRLEN {
		return message{}, nil, errShort
	}
	order := binary.NativeEndian
	size := int(order.Uint32(b))
	if size < unix.NLMSG_HDRLEN || size > len(b) {
		return message{}, nil, errShort
	}
	m = message{order.Uint16(b[4:]), order.Uint32(b[8:]), b[unix.NLMSG_HDRLEN:size]}
	return m, b[min(len(b), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):], nil
}

// verdict returns the error that ends an answer, or nil if the request succeeded.
func (m message) verdict() error {
	if len(m.body) < 4 {
		return errShort
	}
	if errno := int32(binary.NativeEndian.Uint32(m.body)); errno != 0 {
		return fmt.Errorf("%w", syscall.Errno(-errno))
	}
	return nil
}
