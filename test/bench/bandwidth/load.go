package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"fairlead.io/fairlead/test/rig"
)

// The ports outside: one counts what arrives, the other echoes it.
const (
	streamPort = 9
	askPort    = 7
)

// pause is the delay between a connection's requests. Requests sent as fast as possible are slow on
// a processor that has nothing else to do, which is not what is measured here.
const pause = 5 * time.Millisecond

// load is the traffic that a pod sends at one time.
type load struct {
	To      netip.Addr
	Streams int           // connections that write all the time
	Askers  int           // connections that send a request, and the next one after a byte in answer
	Size    int           // bytes of a request; zero = 1
	WarmUp  time.Duration // before anything is counted
	Window  time.Duration // in which requests and bytes are counted
}

// times are quantiles over all requests that were in flight during the window, in milliseconds.
type times struct {
	Asked         int
	P50, P95, P99 float64
}

func funcs() rig.Funcs {
	return rig.Funcs{"bandwidth-sink": asChild(sink), "bandwidth-load": asChild(send)}
}

func asChild(work func(args []string) error) func([]string) int {
	return func(args []string) int {
		if err := work(args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
}

// sink receives streams and requests. For each line that it reads, it prints the bytes of streams
// and the number of requests so far.
func sink([]string) error {
	var bytes, asked atomic.Uint64
	for port, serve := range map[int]func(net.Conn){
		streamPort: func(conn net.Conn) { _, _ = io.Copy(counter{&bytes}, conn) },
		askPort: func(conn net.Conn) {
			var size [4]byte
			_, err := io.ReadFull(conn, size[:])
			for request := make([]byte, binary.BigEndian.Uint32(size[:])); err == nil; {
				if _, err = io.ReadFull(conn, request); err == nil {
					asked.Add(1)
					_, err = conn.Write(request[:1])
				}
			}
		},
	} {
		listener, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			return err
		}
		go rig.Serve(listener, serve)
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(bytes.Load(), asked.Load())
	}
	return nil
}

type counter struct{ *atomic.Uint64 }

func (c counter) Write(p []byte) (int, error) {
	c.Add(uint64(len(p)))
	return len(p), nil
}

// send connects, reports that it is ready, and sends. Once it reads a line, requests are counted;
// when all counted requests are answered, it prints their times. It ends when its input ends.
func send(args []string) error {
	var l load
	if err := json.Unmarshal([]byte(args[0]), &l); err != nil {
		return err
	}
	failed := make(chan error, l.Streams+l.Askers)
	var begin, end atomic.Int64 // of the window; 0: not known yet
	epoch := time.Now()
	end.Store(int64(time.Hour))
	var took [][]time.Duration
	var asking sync.WaitGroup
	dial := func(port uint16) (net.Conn, error) {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(l.To, port).String(), 10*time.Second)
		if err != nil {
			return nil, err
		}
		return conn, conn.(*net.TCPConn).SetLinger(0) // discard unsent data at the end
	}
	var asks, streams []net.Conn
	for range l.Askers {
		conn, err := dial(askPort)
		if err != nil {
			return err
		}
		if _, err := conn.Write(binary.BigEndian.AppendUint32(nil, uint32(max(l.Size, 1)))); err != nil { // the size of requests
			return err
		}
		asks = append(asks, conn)
	}
	for range l.Streams {
		conn, err := dial(streamPort)
		if err != nil {
			return err
		}
		streams = append(streams, conn)
	}
	took = make([][]time.Duration, l.Askers)
	for i, conn := range asks {
		asking.Go(func() {
			request := make([]byte, max(l.Size, 1))
			for {
				start := time.Since(epoch)
				if int64(start) >= end.Load() {
					return
				}
				_, err := conn.Write(request)
				if err == nil {
					_, err = io.ReadFull(conn, request[:1])
				}
				if err != nil {
					failed <- fmt.Errorf("ask: %w", err)
					return
				}
				// Requests that were in flight when the window began count too; those that take
				// longer than the window all are.
				if from, ended := begin.Load(), time.Since(epoch); from > 0 && int64(ended) >= from {
					took[i] = append(took[i], ended-start)
				}
				time.Sleep(pause)
			}
		})
	}
	for _, conn := range streams {
		go func() {
			for data := make([]byte, 1<<16); ; {
				if _, err := conn.Write(data); err != nil {
					failed <- fmt.Errorf("stream: %w", err)
					return
				}
			}
		}()
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	if !lines.Scan() {
		return nil
	}
	now := time.Since(epoch)
	begin.Store(int64(now))
	end.Store(int64(now + l.Window))
	asking.Wait()
	if rest := l.Window - (time.Since(epoch) - now); rest > 0 { // if the load has no requests
		time.Sleep(rest)
	}
	select {
	case err := <-failed:
		return err
	default:
	}
	if err := json.NewEncoder(os.Stdout).Encode(timesOf(slices.Concat(took...))); err != nil {
		return err
	}
	lines.Scan()
	return nil
}

func timesOf(all []time.Duration) times {
	slices.Sort(all)
	at := func(part float64) float64 {
		if len(all) == 0 {
			return 0
		}
		return float64(all[min(int(part*float64(len(all))), len(all)-1)]) / 1e6
	}
	return times{Asked: len(all), P50: at(0.5), P95: at(0.95), P99: at(0.99)}
}
