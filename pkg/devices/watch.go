package devices

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	// scanEvery is how often to look even without an event: the kernel does not announce that a
	// program was detached, and it has to be attached again within ten seconds.
	scanEvery = 8 * time.Second
	// scanApart is the least time between two looks: a starting pod causes a dozen events.
	scanApart = 100 * time.Millisecond
	// watchRetry is the pause after a broken subscription or a failed look.
	watchRetry = time.Second

	watchBuffer = 1 << 20
)

// Watch calls look at the start, whenever something about the devices, addresses or default routes
// of this network namespace may have changed, whenever again receives, and every eight seconds,
// until the context ends. It is level-triggered: an event only means that there is something to
// look at, and so does a lost event. It ignores events of devices for which isPod is true: they
// come and go all the time, and the caller learns of them in another way.
func Watch(ctx context.Context, log *slog.Logger, isPod func(name string) bool, again <-chan struct{}, look func() error) error {
	for {
		err := watch(ctx, isPod, again, look)
		if ctx.Err() != nil {
			return nil
		}
		log.Warn("cannot follow the node's devices: trying again", "error", err)
		if !sleep(ctx, watchRetry) {
			return nil
		}
	}
}

// sleep waits, and reports false if the context ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// watch calls look until the context ends, a look fails or a subscription breaks.
func watch(ctx context.Context, isPod func(string) bool, again <-chan struct{}, look func() error) error {
	done := make(chan struct{})
	defer close(done)
	wake, broken, err := subscribe(done, isPod)
	if err != nil {
		return err
	}
	for {
		if err := look(); err != nil {
			return err
		}
		if !sleep(ctx, scanApart) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-broken:
			return err
		case <-wake:
		case <-again:
		case <-time.After(scanEvery):
		}
	}
}

// subscribe returns a channel that receives whenever there is something to look at, and one that
// receives the error that ends the subscriptions: their first error, which may be that events were
// lost.
func subscribe(done chan struct{}, isPod func(string) bool) (wake chan struct{}, broken chan error, err error) {
	wake, broken = make(chan struct{}, 1), make(chan error, 1)
	signal := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	failed := func(err error) {
		select {
		case broken <- err:
		default: // the first error is enough
		}
	}
	return wake, broken, errors.Join(
		follow("devices", failed, func(u netlink.LinkUpdate) {
			if !isPod(u.Attrs().Name) {
				signal()
			}
		}, func(updates chan<- netlink.LinkUpdate) error {
			return netlink.LinkSubscribeWithOptions(updates, done,
				netlink.LinkSubscribeOptions{ErrorCallback: failed, ReceiveBufferSize: watchBuffer})
		}),
		follow("addresses", failed, func(u netlink.AddrUpdate) {
			// Every device has an IPv6 link-local address, which is never used for anything here.
			if ip := u.LinkAddress.IP; ip.To4() != nil || !ip.IsLinkLocalUnicast() {
				signal()
			}
		}, func(updates chan<- netlink.AddrUpdate) error {
			return netlink.AddrSubscribeWithOptions(updates, done,
				netlink.AddrSubscribeOptions{ErrorCallback: failed, ReceiveBufferSize: watchBuffer})
		}),
		follow("routes", failed, func(r netlink.RouteUpdate) {
			if isDefault(r.Dst) {
				signal()
			}
		}, func(updates chan<- netlink.RouteUpdate) error {
			return netlink.RouteSubscribeWithOptions(updates, done,
				netlink.RouteSubscribeOptions{ErrorCallback: failed, ReceiveBufferSize: watchBuffer})
		}),
	)
}

// follow passes the updates of a subscription to heard until it ends.
func follow[T any](what string, ended func(error), heard func(T), subscribe func(chan<- T) error) error {
	updates := make(chan T)
	if err := subscribe(updates); err != nil {
		return fmt.Errorf("subscribe to the node's %s: %w", what, err)
	}
	go func() {
		for update := range updates {
			heard(update)
		}
		ended(fmt.Errorf("the subscription to the node's %s ended", what))
	}()
	return nil
}
