package podnet

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// drain receives so many datagrams, and prints at how many bytes a second they came, and which
// share of them came late. The time of each is the kernel's timestamp, whenever it is read.
func drain(args []string) int {
	err := func() error {
		want, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		listener, err := net.ListenPacket("udp", ":"+args[1])
		if err != nil {
			return err
		}
		conn := listener.(*net.UDPConn)
		if err := errors.Join(setOption(conn, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			setOption(conn, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)); err != nil {
			return err
		}
		fmt.Println("ready")
		return timeAll(conn, want)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// timeAll prints at how many bytes a second so many datagrams come.
func timeAll(conn *net.UDPConn, want int) error {
	came := make([]arrival, want)
	for i := range came {
		at, err := cameAt(conn)
		if err != nil {
			return fmt.Errorf("datagram %d of %d: %w", i, want, err)
		}
		came[i].at = at
	}
	slices.SortFunc(came, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	for i := range came {
		came[i].sum = (i + 1) * datagram
	}
	fmt.Println(rateOf(came))
	return nil
}

// swallow accepts connections, and prints at how many bytes a second their data came, as soon as so
// many bytes have come.
func swallow(args []string) int {
	err := func() error {
		all, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		if slices.Contains(args[1:], "one") {
			err = onOne()
		}
		if err != nil {
			return err
		}
		listener, err := net.Listen("tcp", ":9")
		if err != nil {
			return err
		}
		fmt.Println("ready")
		conns := make(chan net.Conn)
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				conns <- conn
			}
		}()
		return gather(conns, all)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// fetch dials, and prints at how many bytes a second the connection's data came, as soon as so many
// bytes have come.
func fetch(args []string) int {
	err := func() error {
		all, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		if err := onOne(); err != nil {
			return err
		}
		conn, err := net.DialTimeout("tcp", args[0], patience)
		if err != nil {
			return err
		}
		conns := make(chan net.Conn, 1)
		conns <- conn
		return gather(conns, all)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// gather reads from connections until so many bytes have come, and prints at how many bytes a
// second.
func gather(conns <-chan net.Conn, all int) error {
	came := make(chan int)
	go func() {
		for conn := range conns {
			go func() {
				for data := make([]byte, 1<<16); ; {
					n, err := conn.Read(data)
					if err != nil {
						return
					}
					came <- n
				}
			}()
		}
	}()
	var list []arrival
	for sum, since := 0, time.Now(); sum < all; {
		select {
		case n := <-came:
			sum += n
			list = append(list, arrival{time.Since(since), sum})
		case <-time.After(patience):
			return fmt.Errorf("%d of %d bytes have come", sum, all)
		}
	}
	fmt.Println(rateOf(list))
	return nil
}

// onOne makes the process run on one processor, and with it what the kernel does with its packets.
// Of several emulated processors, each waits while another has its turn, and packets that it holds
// fall behind later ones: what connections then take for losses costs time that has nothing to do
// with the rate.
func onOne() error {
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return err
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if may.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	threads, err := os.ReadDir("/proc/self/task") // new threads inherit it
	for _, thread := range threads {
		id, bad := strconv.Atoi(thread.Name())
		err = errors.Join(err, bad, unix.SchedSetaffinity(id, &one))
	}
	return err
}

// stream sends on so many connections until they are closed.
func stream(args []string) int {
	err := func() error {
		flows, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		if slices.Contains(args[2:], "one") {
			err = onOne()
		}
		if err != nil {
			return err
		}
		conns := make([]net.Conn, flows)
		for i := range conns {
			if conns[i], err = net.Dial("tcp", args[0]); err != nil {
				return err
			}
		}
		var all sync.WaitGroup
		for _, conn := range conns {
			all.Go(func() { fill(conn) })
		}
		all.Wait()
		return nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// lavish does so on connections that it accepts.
func lavish(args []string) int {
	err := func() error {
		if err := onOne(); err != nil {
			return err
		}
		listener, err := net.Listen("tcp", args[0])
		if err != nil {
			return err
		}
		fmt.Println("ready")
		for {
			conn, err := listener.Accept()
			if err != nil {
				return err
			}
			go fill(conn)
		}
	}()
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// fill sends on a connection until it is closed.
func fill(conn net.Conn) {
	defer conn.Close()
	for data := make([]byte, 1<<16); ; {
		if _, err := conn.Write(data); err != nil {
			return
		}
	}
}

// streamed has a pod send on connections, and returns how many bytes a second arrived in another
// namespace.
func streamed(t *testing.T, from, at *rig.Netns, to netip.Addr, flows, all int) float64 {
	t.Helper()
	return streaming(t, from, at, to, flows, all)()
}

// streamedByOne does so with each end on one processor.
func streamedByOne(t *testing.T, from, at *rig.Netns, to netip.Addr, flows, all int) float64 {
	t.Helper()
	return streaming(t, from, at, to, flows, all, "one")()
}

// streaming starts to do so, and returns a function that waits for the result. The ends get more
// arguments.
func streaming(t *testing.T, from, at *rig.Netns, to netip.Addr, flows, all int, more ...string) (end func() float64) {
	t.Helper()
	sink := rig.NewChild(t, nil, at, "swallow", append([]string{strconv.Itoa(all)}, more...)...)
	if line, err := sink.ReadLine(); err != nil || line != "ready" {
		t.Fatalf("swallow in %s: %q, %v", at, line, err)
	}
	source := rig.NewChild(t, nil, from, "stream", append([]string{netip.AddrPortFrom(to, 9).String(), strconv.Itoa(flows)}, more...)...)
	return func() float64 {
		t.Helper()
		got := drained(t, sink)
		if err := source.Wait(); err != nil {
			t.Fatal(err)
		}
		return got
	}
}

// cameAt reads a datagram, and returns when it came.
func cameAt(conn *net.UDPConn) (time.Duration, error) {
	data, control := make([]byte, 2*datagram), make([]byte, 256)
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	n, m, _, _, err := conn.ReadMsgUDP(data, control)
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:m])
	if err != nil || len(messages) != 1 || n != datagram {
		return 0, fmt.Errorf("it has %d bytes and no time: %v", n, err)
	}
	at := (*unix.Timespec)(unsafe.Pointer(&messages[0].Data[0]))
	return time.Duration(at.Nano()), nil
}

// arrival is when so many bytes had come.
type arrival struct {
	at  time.Duration
	sum int
}

// rateOf returns at how many bytes a second data came. On a busy machine any arrival may be late,
// but none is early, so this is the rate between the arrival in the second quarter and the one in
// the last quarter that were earliest for their positions. The first quarter says nothing: a pod
// may make up for what it did not send before, and connections start slowly. late is the share of
// arrivals that came later than that rate says.
func rateOf(came []arrival) (rate, late float64) {
	all := came[len(came)-1].sum
	part := func(quarters int) int {
		return slices.IndexFunc(came, func(a arrival) bool { return a.sum >= all*quarters/4 })
	}
	first, last := came[part(1)], came[len(came)-1]
	pace := (last.at - first.at).Seconds() / float64(last.sum-first.sum)
	lag := func(from, a arrival) float64 { return (a.at - from.at).Seconds() - float64(a.sum-from.sum)*pace }
	earliest := func(list []arrival) arrival {
		return slices.MinFunc(list, func(a, b arrival) int { return cmp.Compare(lag(first, a), lag(first, b)) })
	}
	from, to := earliest(came[part(1):part(2)+1]), earliest(came[part(3):])
	pace = (to.at - from.at).Seconds() / float64(to.sum-from.sum)
	for _, a := range came[part(1):] {
		if lag(from, a) > datagrams*datagram*pace+0.005 {
			late += 1 / float64(len(came)-part(1))
		}
	}
	return 1 / pace, late
}

func setOption(conn *net.UDPConn, level, name, value int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, name, value) })
	return errors.Join(err, failed)
}

// hurry has a socket send datagrams in merged packets, and gives it a buffer for as many as the
// test sends.
func hurry(conn *net.UDPConn) error {
	return errors.Join(setOption(conn, unix.IPPROTO_UDP, unix.UDP_SEGMENT, datagram), setOption(conn, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 64<<20))
}

// pour sends so many datagrams by some flows, as fast as it can, and prints how many packets it
// sent later than at the given rate. Flows take turns, and so do destination and source addresses
// if there are several; without source addresses, the kernel chooses.
func pour(args []string) int {
	err := func() error {
		flows, err := strconv.Atoi(args[1])
		all, err2 := strconv.Atoi(args[2])
		rate, err3 := strconv.ParseFloat(args[3], 64)
		if err := errors.Join(err, err2, err3); err != nil {
			return err
		}
		to, conns := strings.Split(args[0], ","), make([]net.Conn, flows)
		for i := range conns {
			var dialer net.Dialer
			if from := args[4:]; len(from) > 0 {
				dialer.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from[i%len(from)])}
			}
			if conns[i], err = dialer.Dial("udp", to[i%len(to)]); err != nil {
				return err
			}
			defer conns[i].Close()
			if err := hurry(conns[i].(*net.UDPConn)); err != nil {
				return err
			}
		}
		behind, since := 0, time.Now()
		for i := range all / datagrams {
			if _, err := conns[i%flows].Write(make([]byte, datagram*datagrams)); err != nil {
				return err
			}
			if (time.Since(since)-madeUp).Seconds()*rate > float64(i*datagram*datagrams) {
				behind++
			}
		}
		fmt.Println(behind)
		return nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// measured has a pod send datagrams, and returns how many bytes a second arrived in another
// namespace.
func measured(t *testing.T, from, at *rig.Netns, to netip.Addr, flows, all int) float64 {
	t.Helper()
	got, _, _ := poured(t, from, at, to, flows, all, 0)
	return got
}

// measuredAt does so for a pod that is to keep to a rate. If the machine is so busy that the pod
// itself falls behind the rate, or that many datagrams do not come when any one rate would have
// them, the result says nothing about the rate, and it measures again. It returns false if that was
// so each time.
func measuredAt(t *testing.T, from, at *rig.Netns, to netip.Addr, flows, all int, rate float64) (got float64, ok bool) {
	t.Helper()
	for range 5 {
		got, late, behind := poured(t, from, at, to, flows, all, rate)
		if behind == 0 && late < 0.25 {
			return got, true
		}
		t.Logf("%s fell behind with %d of %d merged packets, %.0f %% came late", from, behind, all/datagrams, late*100)
	}
	return 0, false
}

// poured has a pod send datagrams, and returns how many bytes a second arrived in another
// namespace, which share of them came late, and how many of the packets were sent later than at the
// rate.
func poured(t *testing.T, from, at *rig.Netns, to netip.Addr, flows, all int, rate float64) (got, late float64, behind int) {
	t.Helper()
	sink := drainAt(t, at, 9, all)
	out := rig.Child(t, nil, from, "pour", netip.AddrPortFrom(to, 9).String(), strconv.Itoa(flows), strconv.Itoa(all), fmt.Sprint(rate))
	behind, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatalf("pour: %q", out)
	}
	got, late = drainedOf(t, sink)
	return got, late, behind
}

// drainAt starts to receive so many datagrams at a port.
func drainAt(t *testing.T, at *rig.Netns, port, all int) *rig.Process {
	t.Helper()
	sink := rig.NewChild(t, nil, at, "drain", strconv.Itoa(all), strconv.Itoa(port))
	if line, err := sink.ReadLine(); err != nil || line != "ready" {
		t.Fatalf("drain in %s: %q, %v", at, line, err)
	}
	return sink
}

// drained returns at how many bytes a second they came.
func drained(t *testing.T, sink *rig.Process) float64 {
	t.Helper()
	got, _ := drainedOf(t, sink)
	return got
}

// drainedOf also returns which share of them came late.
func drainedOf(t *testing.T, sink *rig.Process) (got, late float64) {
	t.Helper()
	line, err := sink.ReadLine()
	if err != nil {
		t.Fatalf("drain: %v, %v", err, sink.Wait())
	}
	if _, err := fmt.Sscan(line, &got, &late); err != nil {
		t.Fatalf("drain: %q", line)
	}
	if err := sink.Wait(); err != nil {
		t.Fatal(err)
	}
	return got, late
}
