package fabric

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// listen returns a channel that has something in it after a route of ours was removed, by which the kernel's news are
// told from what was done here, or after what they depend on changed. It is a hint: what is missed is found at the next look.
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
			matters := err != nil // some were lost
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

// matters reports whether it is worth a look that the kernel says this.
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
		// A pod's route comes and goes with it.
		return !r.cloned && r.table == unix.RT_TABLE_MAIN && !r.to.IsSingleIP()
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) < unix.SizeofIfInfomsg {
			return false
		}
		// Routes of IPv4 go with their device without a word.
		index, flags := binary.NativeEndian.Uint32(data[4:]), binary.NativeEndian.Uint32(data[8:])
		return f.devices[int(index)] && (kind == unix.RTM_DELLINK || flags&unix.IFF_UP == 0)
	}
	return false
}
