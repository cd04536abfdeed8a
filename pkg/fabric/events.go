package fabric

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// listen returns a channel that signals when a route that should exist was removed, which excludes
// removals of our own, or when something changed that our routes depend on. A signal is a hint: Run
// finds what it misses at its next look.
func (f *Fabric) listen(ctx context.Context) (<-chan struct{}, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, fmt.Errorf("follow routes: %w", err)
	}
	heard := make(chan struct{}, 1)
	go func() {
		<-ctx.Done()
		socket.Close()
	}()
	go func() {
		for ctx.Err() == nil {
			messages, _, err := socket.Receive()
			matters := err != nil // some messages were lost
			for _, m := range messages {
				matters = matters || f.matters(m.Header.Type, m.Data)
			}
			if matters {
				select {
				case heard <- struct{}{}:
				default:
				}
			}
		}
	}()
	return heard, nil
}

// matters reports whether a message of the kernel is a reason to look.
func (f *Fabric) matters(kind uint16, data []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch kind {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		r, err := parseRoute(data)
		if err != nil {
			return false
		}
		if r.isOurs() {
			_, wanted := f.have[r.to]
			return wanted && kind == unix.RTM_DELROUTE
		}
		// Routes to single addresses come and go with pods.
		return !r.cloned && r.table == unix.RT_TABLE_MAIN && !r.to.IsSingleIP()
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) < unix.SizeofIfInfomsg {
			return false
		}
		// The kernel removes a device's IPv4 routes without a message.
		index, flags := binary.NativeEndian.Uint32(data[4:]), binary.NativeEndian.Uint32(data[8:])
		return f.devices[int(index)] && (kind == unix.RTM_DELLINK || flags&unix.IFF_UP == 0)
	}
	return false
}
