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

// The ports outside: where all that comes is counted, and where it is sent back.
const (
	streamPort = 9
	askPort    = 7
)

// pause is how long a connection waits with the next request: a processor that has nothing else to do makes requests slow that are
// made as fast as they can be, which is not what is looked at here.
const pause = 5 * time.Millisecond

// load is what a pod sends at the same time.
type load struct {
	To      netip.Addr
	Streams int           // connections that write for as long as it lasts
	Askers  int           // connections that ask, and again once a byte has come in answer
	Size    int           // bytes of a request; zero = 1
	WarmUp  time.Duration // before anything counts
	Window  time.Duration // for which requests and bytes count
}

// times are of all requests that were on their way within the window, in milliseconds.
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

// sink takes what comes, and prints how many bytes of streams that were, and how many requests, whenever it reads a line.
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
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					serve(conn)
				}()
			}
		}()
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

// send connects, says so, and sends. Once it reads a line, requests count, and when all that count are answered it prints their times.
// It ends with its input.
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
		return conn, conn.(*net.TCPConn).SetLinger(0) // what has not left yet is for nobody when this ends
	}
	var asks, streams []net.Conn
	for range l.Askers {
		conn, err := dial(askPort)
		if err != nil {
			return err
		}
		if _, err := conn.Write(binary.BigEndian.AppendUint32(nil, uint32(max(l.Size, 1)))); err != nil { // how much a request is
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
				// One that has been on its way when the window began counts too: those that take longer than it are all of that kind.
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
	if rest := l.Window - (time.Since(epoch) - now); rest > 0 { // of a load without requests
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
