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

// Peers is the records that the programs keep of connected sockets, of all network namespaces. It has what it needs for
// itself, so it outlives its Datapath.
type Peers struct {
	iterator *link.Iter
	streams  *ebpf.Map // nil when nobody asks for those
}

// Peers returns the records, with or without those that TCP sockets have; the caller closes them. Nothing is pinned or
// attached to traffic. The error wraps ebpf.ErrNotSupported where the kernel has no type information of itself, without
// which it has no iterators.
func (d *Datapath) Peers(streams bool) (*Peers, error) {
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
		return nil, loadError(err)
	}
	defer program.Close()
	iterator, err := link.AttachIter(link.IterOptions{Program: program, Map: d.maps.SockPeers})
	if err != nil {
		return nil, fmt.Errorf("list records of sockets: %w", err)
	}
	p := &Peers{iterator: iterator}
	if !streams {
		return p, nil
	}
	if p.streams, err = d.maps.ConnPeers.Clone(); err != nil {
		return nil, errors.Join(fmt.Errorf("duplicate map conn_peers: %w", err), iterator.Close())
	}
	return p, nil
}

// Each calls f for every record that hangs on its socket, with that one's cookie, in any order. A record that is written
// meanwhile may be torn, and one that comes or goes may be missed.
func (p *Peers) Each(f func(cookie uint64, record maps.SockPeer)) error {
	list, err := p.iterator.Open()
	if err != nil {
		return fmt.Errorf("list records of sockets: %w", err)
	}
	defer list.Close()
	from := bufio.NewReaderSize(patient{list}, 64<<10)
	var one maps.ConnPeer // which is what the iterator writes
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

// Row returns the record of a TCP socket, and whether there is one where programs look first. A list would cost the
// same for one socket as for all that there is room for.
func (p *Peers) Row(cookie uint64) (maps.SockPeer, bool, error) {
	var row maps.ConnPeer
	if p.streams == nil {
		return maps.SockPeer{}, false, nil
	}
	if err := p.streams.Lookup(uint32(cookie)&(p.streams.MaxEntries()-1), &row); err != nil {
		return maps.SockPeer{}, false, fmt.Errorf("look up record of a TCP socket: %w", err)
	}
	return row.Peer, row.Cookie == cookie, nil
}

// Close lets go of the records.
func (p *Peers) Close() error {
	var errs []error
	if err := p.iterator.Close(); err != nil {
		errs = append(errs, fmt.Errorf("close iterator: %w", err))
	}
	if p.streams != nil {
		errs = append(errs, p.streams.Close())
	}
	return errors.Join(errs...)
}

// patient reads on where the kernel gave way in a long list.
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
