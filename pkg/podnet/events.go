package podnet

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// listen returns a channel that signals when a route to a single address was removed, as also
// happens when a pod's device goes. A signal is a hint: Run finds what it misses at its next look.
func listen(ctx context.Context) (<-chan struct{}, error) {
	heard := make(chan struct{}, 1)
	wake := func() {
		select {
		case heard <- struct{}{}:
		default:
		}
	}
	lost := func(error) { wake() }
	routes := make(chan netlink.RouteUpdate, 64)
	if err := netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: lost}); err != nil {
		return nil, fmt.Errorf("follow routes: %w", err)
	}
	go func() {
		for update := range routes {
			if _, ok := single(update.Dst); ok && update.Type == unix.RTM_DELROUTE {
				wake()
			}
		}
	}()
	return heard, nil
}
