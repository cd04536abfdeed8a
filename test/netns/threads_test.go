package netns

import (
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// sharedServices is more services than the programs remember for a socket, so that its threads
// overwrite each other's memory all the time.
const sharedServices = 40

func sharedVIP(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 66, 2, byte(i + 1)}), 53)
}

func sharedBackend(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 2, byte(i + 1)}), 5353)
}

// share sends through one socket from four threads, each to all services in turn, while two others
// receive. It reports how many datagrams arrived, and how many under the name of a service that did
// not send them.
func (o op) share(fd int, out *outcome) error {
	done := make(chan struct{})
	var sending, receiving sync.WaitGroup
	var mu sync.Mutex
	var came, wrong int
	for thread := range 4 {
		sending.Go(func() {
			for i := range o.N {
				to := sharedVIP((i + thread*sharedServices/4) % sharedServices)
				_ = unix.Sendto(fd, []byte("?"), 0, sockaddr(unix.AF_INET, to)) // lost datagrams do not count
			}
		})
	}
	for range 2 {
		receiving.Go(func() {
			text := make([]byte, 64)
			for {
				n, from, err := unix.Recvfrom(fd, text, 0)
				if err != nil {
					select {
					case <-done:
						return
					default:
						continue
					}
				}
				server := netip.MustParseAddrPort(string(text[:n]))
				service := sharedVIP(int(server.Addr().As4()[3]) - 1)
				mu.Lock()
				came++
				if at := addrPort(from); at != service && at != server { // the answer of a forgotten service comes from its backend
					wrong++
				}
				mu.Unlock()
			}
		})
	}
	limit := unix.NsecToTimeval(int64(100 * time.Millisecond))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return fmt.Errorf("limit the wait for datagrams: %w", err)
	}
	sending.Wait()
	close(done)
	receiving.Wait()
	out.N, out.Text = wrong, strconv.Itoa(came)
	return nil
}

// The programs take no lock for what they remember of a socket: the kernel holds the socket lock.
func TestThreadsShareASocket(t *testing.T) {
	n := newNode(t)
	p := newProgram(t, n.cgroup, rig.NewNetns(t, "pod"))
	for i := range sharedServices {
		n.add(service{vip: sharedVIP(i), proto: model.UDP, backends: []netip.AddrPort{sharedBackend(i)}})
		p.serve(sharedBackend(i))
	}
	socket := p.udp(sharedVIP(0), false)
	out := p.must(op{Call: "share", Socket: socket, N: rig.Times(t, 10_000)})
	came, err := strconv.Atoi(out.Text)
	if err != nil || came == 0 {
		t.Fatalf("%q datagrams came: %v", out.Text, err)
	}
	if out.N != 0 {
		t.Errorf("%d of %d datagrams came under the name of another service", out.N, came)
	}
	if n.count(bpf.MapsReasonREASON_NO_BACKEND) != 0 {
		t.Error("a datagram was refused")
	}
	t.Logf("%d datagrams came", came)
}
