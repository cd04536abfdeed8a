package observe

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/model"
)

// Probe connects a socket as any process would and returns the address that the socket was pointed at, which the process
// itself never hears of. It is a new connection to affinity and to round robin. A probe of TCP sends nothing where the
// kernel lets a client fast-open (net.ipv4.tcp_fastopen), and one SYN elsewhere; one of UDP sends nothing. The error
// wraps a unix.Errno if it is that of connect.
func Probe(to netip.AddrPort, protocol model.Protocol) (netip.AddrPort, error) {
	family, typ := unix.AF_INET, unix.SOCK_STREAM
	var address unix.Sockaddr = &unix.SockaddrInet4{Port: int(to.Port()), Addr: v4(to.Addr())}
	if model.FamilyOf(to.Addr()) == model.IPv6 {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	if protocol == model.UDP {
		typ = unix.SOCK_DGRAM
	}
	socket, err := unix.Socket(family, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("probe: open socket: %w", err)
	}
	defer unix.Close(socket)
	if protocol == model.TCP {
		// Without a cookie to wait for, connect leaves the SYN to the first write, which never comes. A kernel that
		// does not allow that sends it.
		if unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_NO_COOKIE, 1) == nil {
			_ = unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)
		}
	}
	if err := unix.Connect(socket, address); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return netip.AddrPort{}, fmt.Errorf("probe: connect: %w", err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(socket, &stat); err != nil {
		return netip.AddrPort{}, fmt.Errorf("probe: identify the socket: %w", err)
	}
	return peerOf(stat.Ino, family, protocol)
}

func v4(addr netip.Addr) [4]byte {
	if addr = addr.Unmap(); addr.Is4() {
		return addr.As4()
	}
	return [4]byte{}
}

// peerOf asks the kernel's list of sockets for the address that one is connected to: getpeername would give the one that
// was dialled.
func peerOf(inode uint64, family int, protocol model.Protocol) (netip.AddrPort, error) {
	path := "/proc/thread-self/net/" + protocol.String()
	if family == unix.AF_INET6 {
		path += "6"
	}
	file, err := os.Open(path)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("probe: list sockets: %w", err)
	}
	defer file.Close()
	peer, err := findPeer(file, inode)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("probe: %s: %w", path, err)
	}
	return peer, nil
}

// findPeer reads a list of sockets: a line has the number, the local and the remote address, and, as the tenth of its
// words, the inode.
func findPeer(list io.Reader, inode uint64) (netip.AddrPort, error) {
	want := strconv.FormatUint(inode, 10)
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) >= 10 && words[9] == want {
			return parseSocketAddress(words[2])
		}
	}
	if err := lines.Err(); err != nil {
		return netip.AddrPort{}, fmt.Errorf("list sockets: %w", err)
	}
	return netip.AddrPort{}, errors.New("the socket is not listed")
}

// parseSocketAddress reads an address as the kernel lists it: words in the byte order of the machine.
func parseSocketAddress(text string) (netip.AddrPort, error) {
	host, port, ok := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	number, portErr := strconv.ParseUint(port, 16, 16)
	if err != nil || portErr != nil || !ok || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, fmt.Errorf("read address %q: not as expected", text)
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	addr, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), nil
}

// Probed is where probes went.
type Probed struct {
	Address netip.AddrPort `json:"address,omitzero"`
	Error   string         `json:"error,omitempty"` // of connect, which then tells no address
	Count   int            `json:"count"`

	refused bool
}

// AddProbes makes n probes and adds to the explanation where they went, and what that means if it is not where they
// should have gone. They are made from the caller's namespace and cgroup, so they tell of a client there alone.
func (e *Explanation) AddProbes(n int) error {
	if !e.here {
		e.Notes = append(e.Notes, "No probe was made: this command is not in the client's network namespace.")
		return nil
	}
	if e.protocol == model.SCTP {
		e.Notes = append(e.Notes, "No probe was made: sockets of SCTP meet no program, and one may load a module into the kernel.")
		return nil
	}
	counts := map[Probed]int{}
	for range n {
		var got Probed
		var err error
		if got.Address, err = Probe(e.Destination, e.protocol); err != nil {
			var errno unix.Errno
			if !errors.As(err, &errno) {
				return err
			}
			got.Error, got.refused = errno.Error(), errno == unix.ECONNREFUSED
		}
		if counts[got]++; counts[got] == 1 {
			e.Probes = append(e.Probes, got)
			e.judge(got)
		}
	}
	for i, p := range e.Probes {
		e.Probes[i].Count = counts[p]
	}
	return nil
}

// judge notes what it means that a probe went somewhere else than it should.
func (e *Explanation) judge(got Probed) {
	switch {
	case got.Address == e.Destination && e.Outcome != LeftAlone:
		e.Notes = append(e.Notes, "A probe was pointed nowhere: the programs are attached to another part of the cgroup tree than this command is "+
			"in ("+ownCgroup()+"), or take no effect.")
	case got.refused && e.Outcome == ToBackend, got.Address.IsValid() && got.Address != e.Destination && !e.isCandidate(got.Address):
		e.Notes = append(e.Notes, "A probe went another way than the maps say: they may have changed meanwhile; ask again.")
	case got.Error != "" && !got.refused:
		e.Notes = append(e.Notes, "A probe met no route: either to the backend, or the programs did not point it at one.")
	}
}

func (e *Explanation) isCandidate(address netip.AddrPort) bool {
	for _, c := range e.Candidates {
		if c.Address == address {
			return true
		}
	}
	return false
}

// ownCgroup returns the path of this process in the cgroup2 tree, as far as its own view goes.
func ownCgroup() string {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(path)
		}
	}
	return "unknown"
}
