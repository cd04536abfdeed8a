package netfilter

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// count holds the number of records. It exists once connection tracking is loaded, which asking
	// for records would load.
	count = "/proc/sys/net/netfilter/nf_conntrack_count"
	// newGroup is NFNLGRP_CONNTRACK_NEW.
	newGroup = 1
	// room is the receive buffer, for connections that begin while nobody reads.
	room = 4 << 20
)

// Records gives access to the existing and the new records of the network namespace in which Open
// was called.
type Records struct{ added *nl.NetlinkSocket }

// Open starts listening for new records. It returns nil if there are no records, since nobody
// tracks connections.
func Open() (*Records, error) {
	text, err := os.ReadFile(count)
	if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(text)) == "0" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the number of netfilter's connections: %w", err)
	}
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER, newGroup)
	if err != nil {
		return nil, fmt.Errorf("subscribe to netfilter's connections: %w", err)
	}
	if err := socket.SetReceiveBufferSize(room, true); err != nil {
		socket.Close()
		return nil, fmt.Errorf("subscribe to netfilter's connections: %w", err)
	}
	return &Records{added: socket}, nil
}

// Each calls visit with each connection whose destination the stack translates, until visit returns
// false.
func (r *Records) Each(visit func(Connection) bool) error {
	return dump(func(msg []byte) bool {
		c, ok := parse(msg)
		return !ok || visit(c)
	})
}

// Ends calls visit with the two ends of each connection that netfilter tracks in this network
// namespace, however its addresses are translated on the way.
func Ends(visit func(client, server netip.Addr)) error {
	return dump(func(msg []byte) bool {
		if client, server, ok := parseEnds(msg); ok {
			visit(client, server)
		}
		return true
	})
}

func dump(visit func(msg []byte) bool) error {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
	if err := req.ExecuteIter(unix.NETLINK_NETFILTER, 0, visit); err != nil {
		return fmt.Errorf("list netfilter's connections: %w", err)
	}
	return nil
}

// Added waits for connections that have begun since Open. If there are none by the given time, it
// returns none.
func (r *Records) Added(until time.Time) (list []Connection, err error) {
	wait := unix.NsecToTimeval(max(time.Until(until), time.Millisecond).Nanoseconds())
	if err := r.added.SetReceiveTimeout(&wait); err != nil {
		return nil, err
	}
	messages, from, err := r.added.Receive()
	if errors.Is(err, unix.EAGAIN) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("receive netfilter's connections: %w", err)
	}
	if from.Pid != nl.PidKernel {
		return nil, nil
	}
	for _, m := range messages {
		if c, ok := parse(m.Data); ok && m.Header.Type>>8 == unix.NFNL_SUBSYS_CTNETLINK {
			list = append(list, c)
		}
	}
	return list, nil
}

// Close closes the socket. A pending Added returns an error.
func (r *Records) Close() { r.added.Close() }
