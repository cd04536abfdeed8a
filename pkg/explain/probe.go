package explain

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

// Probe connects a socket like any other process and returns the address that the socket was
// pointed at, which the process itself never learns. Affinity and round robin treat it as a new
// connection. A TCP probe sends nothing if the kernel lets clients use TCP Fast Open
// (net.ipv4.tcp_fastopen), and one SYN otherwise. A UDP probe sends nothing. The error wraps a
// unix.Errno if connect failed.
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
		// With no Fast Open cookie needed, connect defers the SYN to the first write, which never
		// comes. A kernel that does not allow this sends the SYN.
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

// peerOf looks up the address that a socket is connected to in the kernel's list of sockets;
// getpeername would return the dialed one.
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

// findPeer reads a list of sockets. A line has the number, the local and the remote address and, as
// its tenth word, the inode.
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

// parseSocketAddress parses an address as the kernel lists it: 32-bit words in native byte order.
func parseSocketAddress(text string) (netip.AddrPort, error) {
	host, port, ok := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	number, portErr := strconv.ParseUint(port, 16, 16)
	if err != nil || portErr != nil || !ok || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, fmt.Errorf("read address %q: not in the format HEX:PORT", text)
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
	Error   string         `json:"error,omitempty"` // of connect, in which case the address is unknown
	Count   int            `json:"count"`

	refused bool
}

// AddProbes makes n probes and adds to the explanation where they went, and what it means if they
// did not go where they should. They run in the caller's network namespace and cgroup, so they only
// show what a client there gets.
func (e *Explanation) AddProbes(n int) error {
	if !e.here {
		e.Notes = append(e.Notes, "No probe was made: this command is not in the client's network namespace.")
		return nil
	}
	if e.protocol == model.SCTP {
		e.Notes = append(e.Notes, "No probe was made: SCTP sockets meet no program, and opening one may load a kernel module.")
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
			e.findings(got)
		}
	}
	for i, p := range e.Probes {
		e.Probes[i].Count = counts[p]
	}
	return nil
}

// findings notes what it means that a probe did not go where it should.
func (e *Explanation) findings(got Probed) {
	switch {
	case got.Address == e.Destination && e.Outcome != LeftAlone:
		e.Notes = append(e.Notes, "A probe was not pointed at a backend: the programs are attached to another part of the cgroup tree than the one this command is "+
			"in ("+ownCgroup()+"), or have no effect.")
	case got.refused && e.Outcome == ToBackend, got.Address.IsValid() && got.Address != e.Destination && !e.isCandidate(got.Address):
		e.Notes = append(e.Notes, "A probe went elsewhere than the maps say: they may have changed meanwhile; ask again.")
	case got.Error != "" && !got.refused:
		e.Notes = append(e.Notes, "A probe found no route: there is none to the backend, or the programs did not point it at one.")
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

// ownCgroup returns the path of this process in the cgroup2 tree, as this process sees it.
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
