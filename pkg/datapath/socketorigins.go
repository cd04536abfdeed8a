package datapath

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// SocketOrigins gives access to the records that the programs keep of connected sockets, in all network
// namespaces. It holds its own references, so it outlives its Datapath.
type SocketOrigins struct {
	iterator *link.Iter
	streams  *ebpf.Map // nil if TCP sockets are not wanted
}

// SocketOrigins returns SocketOrigins, with or without the records of TCP sockets that are in a map. The caller
// must close it. It pins nothing and attaches nothing to traffic. The error wraps
// ebpf.ErrNotSupported if the kernel lacks its own type information, without which it has no
// iterators.
func (d *shared) SocketOrigins(streams bool) (*SocketOrigins, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, fmt.Errorf("list records of sockets: %w", ErrNoMaps)
	}
	spec, err := bpf.LoadPeers()
	if err != nil {
		return nil, fmt.Errorf("read program specs: %w", err)
	}
	program, err := ebpf.NewProgram(spec.Programs[bpf.PeersProgPeersList])
	if err != nil {
		return nil, bpf.LoadError(err)
	}
	defer program.Close()
	iterator, err := link.AttachIter(link.IterOptions{Program: program, Map: d.maps.SockOrigins})
	if err != nil {
		return nil, fmt.Errorf("list records of sockets: %w", err)
	}
	p := &SocketOrigins{iterator: iterator}
	if !streams {
		return p, nil
	}
	if p.streams, err = d.maps.ConnOrigins.Clone(); err != nil {
		return nil, errors.Join(fmt.Errorf("duplicate map conn_origins: %w", err), iterator.Close())
	}
	return p, nil
}

// Each calls f for every record in socket storage, with the cookie of its socket, in any order. A
// record being written may be torn, and a socket that appears or disappears may be missed.
func (p *SocketOrigins) Each(f func(cookie uint64, record maps.SockOrigin)) error {
	list, err := p.iterator.Open()
	if err != nil {
		return fmt.Errorf("list records of sockets: %w", err)
	}
	defer list.Close()
	from := bufio.NewReaderSize(patient{list}, 64<<10)
	var one maps.ConnOrigin // the format in which the iterator writes
	piece := make([]byte, binary.Size(one))
	for {
		if _, err := io.ReadFull(from, piece); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("list records of sockets: %w", err)
		}
		if _, err := binary.Decode(piece, binary.NativeEndian, &one); err != nil {
			return fmt.Errorf("read record of a socket: %w", err)
		}
		f(one.Cookie, one.Peer)
	}
}

// Row returns the record of a TCP socket from the map where programs look first, and whether it has
// one there. Listing that map would cost as much for one socket as for a full map.
func (p *SocketOrigins) Row(cookie uint64) (maps.SockOrigin, bool, error) {
	var row maps.ConnOrigin
	if p.streams == nil {
		return maps.SockOrigin{}, false, nil
	}
	if err := p.streams.Lookup(uint32(cookie)&(p.streams.MaxEntries()-1), &row); err != nil {
		return maps.SockOrigin{}, false, fmt.Errorf("look up record of a TCP socket: %w", err)
	}
	return row.Peer, row.Cookie == cookie, nil
}

// Close closes the iterator and the map.
func (p *SocketOrigins) Close() error {
	var errs []error
	if err := p.iterator.Close(); err != nil {
		errs = append(errs, fmt.Errorf("close iterator: %w", err))
	}
	if p.streams != nil {
		errs = append(errs, p.streams.Close())
	}
	return errors.Join(errs...)
}

// patient retries when the kernel returns EAGAIN in the middle of a long list.
type patient struct{ io.Reader }

func (p patient) Read(b []byte) (int, error) {
	for {
		n, err := p.Reader.Read(b)
		if n == 0 && errors.Is(err, unix.EAGAIN) {
			continue
		}
		return n, err
	}
}
