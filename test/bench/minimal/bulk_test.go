package minimal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/bench/topology"
	"fairlead.io/fairlead/test/rig"
)

const (
	bulkBytes = 2 << 20
	patience  = 20 * time.Second
)

func TestMain(m *testing.M) {
	os.Exit(rig.Main(m, rig.Funcs{
		"serve": func(args []string) int { return errnoOf(serve(args[0])) },
		"dial":  func(args []string) int { return errnoOf(dial(args[0], args[1])) },
	}))
}

func errnoOf(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// serve answers on TCP and UDP until its standard input ends. On TCP it reports the client's
// address and echoes everything after reading it all; on UDP it echoes every datagram.
func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	packets, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	go rig.Serve(listener, func(conn net.Conn) {
		fmt.Fprintln(conn, conn.RemoteAddr())
		if all, err := io.ReadAll(conn); err == nil {
			_, _ = conn.Write(all) // the client compares
		}
	})
	go func() {
		buffer := make([]byte, 2000)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo(buffer[:n], from) // the client compares
		}
	}()
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// seen is what a client observed.
type seen struct {
	Peer   netip.AddrPort // the peer that the client's socket reports
	Client netip.Addr     // the client's address as the server saw it
}

// dial sends a lot of data to a server and gets it back, and datagrams with and without a checksum.
// It prints what it observed.
func dial(address, limit string) error {
	wait, err := time.ParseDuration(limit)
	if err != nil {
		return err
	}
	var found seen
	if err := dialTCP(address, wait, &found); err != nil {
		return fmt.Errorf("TCP: %w", err)
	}
	for _, plain := range []bool{true, false} {
		if err := dialUDP(address, plain); err != nil {
			return fmt.Errorf("UDP with a checksum %t: %w", plain, err)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func dialTCP(address string, wait time.Duration, found *seen) error {
	dialer := &net.Dialer{Timeout: wait}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	found.Peer = conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	data, random := make([]byte, bulkBytes), rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(data) // cannot fail
	reader := bufio.NewReader(conn)
	line, err := reader.ReadString('\n')
	if err != nil {
		return err
	}
	from, err := netip.ParseAddrPort(line[:len(line)-1])
	if err != nil {
		return err
	}
	found.Client = from.Addr()
	if _, err := conn.Write(data); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	back, err := io.ReadAll(reader)
	if err == nil && !bytes.Equal(back, data) {
		err = fmt.Errorf("%d bytes came back, not equal to the %d bytes sent", len(back), len(data))
	}
	return err
}

func dialUDP(address string, checksum bool) error {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return err
	}
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	if !checksum && conn.RemoteAddr().(*net.UDPAddr).AddrPort().Addr().Is4() {
		var optErr error
		err := raw.Control(func(fd uintptr) { optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) })
		if err := errors.Join(err, optErr); err != nil {
			return err
		}
	}
	for size := 1; size < 1400; size += 133 {
		want, have := bytes.Repeat([]byte{byte(size)}, size), make([]byte, 2000)
		if _, err := conn.Write(want); err != nil {
			return err
		}
		n, err := conn.Read(have)
		if err != nil {
			return fmt.Errorf("%d bytes: %w", size, err)
		}
		if !bytes.Equal(have[:n], want) {
			return fmt.Errorf("%d bytes came back as %d different ones", size, n)
		}
	}
	return nil
}

// startServers makes the first server of a topology listen on the backends' ports.
func startServers(t *testing.T, top *topology.Topology, pairs []Pair) {
	t.Helper()
	for _, pair := range pairs {
		server := rig.NewChild(t, nil, top.Servers[0].Netns, "serve", pair.Backend.String())
		if line, err := server.ReadLine(); err != nil {
			t.Fatalf("%q: %v", line, errors.Join(err, server.Wait()))
		}
	}
}

// exchange sends from the client to a frontend.
func exchange(top *topology.Topology, frontend netip.AddrPort) (seen, error) {
	out, err := rig.RunChild(top.Cgroup, top.Client.Netns, "dial", frontend.String(), patience.String())
	if err != nil {
		return seen{}, err
	}
	var found seen
	return found, json.Unmarshal([]byte(out), &found)
}

// unreachable fails the test if a frontend answers. It only waits briefly, since no answer is
// expected.
func unreachable(t *testing.T, top *topology.Topology, frontend netip.AddrPort) {
	t.Helper()
	_, err := rig.RunChild(top.Cgroup, top.Client.Netns, "dial", frontend.String(), "200ms")
	if err == nil || !strings.Contains(err.Error(), "TCP: dial") {
		t.Fatalf("without the programs, %s answers or fails in another way: %v", frontend, err)
	}
}

// pairsOf returns frontends with addresses that no host has.
func pairsOf(top *topology.Topology) []Pair {
	return []Pair{
		{netip.MustParseAddrPort("192.0.2.10:80"), netip.AddrPortFrom(top.Servers[0].Addr(topology.IPv4), 8080)},
		{netip.MustParseAddrPort("[2001:db8::10]:80"), netip.AddrPortFrom(top.Servers[0].Addr(topology.IPv6), 8080)},
	}
}
