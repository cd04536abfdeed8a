package outside

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// segments sends bytes that the kernel segments into datagrams as late as it can (UDP_SEGMENT).
func (o order) segments() (seen, error) {
	dialer := o.dialer()
	dialer.Control = func(_, _ string, raw syscall.RawConn) (err error) {
		controlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, o.Segment) })
		return errors.Join(controlErr, err)
	}
	conn, err := dialer.Dial("udp", o.Dial.String())
	if err != nil {
		return seen{}, err
	}
	defer conn.Close()
	want, have := text(o.Bytes), make([]byte, 1<<16)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if _, err := conn.Write(want); err != nil {
			return seen{}, err
		}
		if n, err := o.answer(conn, have); err != nil || n > 0 {
			return checkSegment(have[:n], want[:o.Segment], err)
		}
	}
	return seen{}, fmt.Errorf("no answer to any datagram of %d bytes", o.Segment)
}

// answer returns the length of what arrived within a short time, if anything did.
func (o order) answer(conn net.Conn, buffer []byte) (int, error) {
	if err := conn.SetReadDeadline(time.Now().Add(hush / 5)); err != nil {
		return 0, err
	}
	n, err := conn.Read(buffer)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, nil
	}
	return n, err
}

func checkSegment(have, want []byte, err error) (seen, error) {
	if err != nil {
		return seen{}, err
	}
	return checkBytes(have, want)
}

// TestDirectSegments checks that datagrams which the kernel has not segmented yet reach a pod on
// another node that answers its client directly, and that their sender is told when they are too
// long to encapsulate. With Geneve they do not arrive: the kernel treats what was taken out of a
// UDP tunnel as still tunneled, and no program can tell it otherwise.
func TestDirectSegments(t *testing.T) {
	rig.Root(t)
	for _, mode := range []lb.Direct{lb.DirectIPIP, lb.DirectOpt} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newNodesBehindRouter(t, settings{xdp: "off", sums: true})
			for _, v6 := range []bool{false, true} {
				backend, full := podB.at(v6, 8080), 1500-20-8
				if v6 {
					full -= 20
				}
				w.process(w.pods[1]).do(order{Serve: backend})
				for i, node := range []*child[nodeOrder, nodeState]{w.onA, w.onB} {
					node.do(nodeOrder{Service: &service{At: anyAddr.at(v6, toDirect), Kind: maps.NodePort, Backend: backend, Local: i == 1, Direct: mode}})
				}
				p := path{"pod of another node", toDirect, true, podB, 8080}
				w.follow(t, p, v6, order{UDP: true, From: 4321, Segment: 1300, Bytes: 4 * 1300})
				_, err := w.user.try(order{UDP: true, From: 4321, Segment: full, Bytes: 4 * full, Dial: nodeA.at(v6, toDirect)})
				if err == nil || !strings.Contains(err.Error(), unix.EMSGSIZE.Error()) {
					t.Errorf("%s: the sender of datagrams of %d bytes is not told that they are too long: %v", familyName(v6), full, err)
				}
			}
		})
	}
}
