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
	// lookEvery is how often there is a look although nothing was heard: nobody is told of a program that is detached, and it
	// is to be back within ten seconds.
	lookEvery = 8 * time.Second
	// lookApart is the least time between two looks: a pod that starts makes a dozen events.
	lookApart = 100 * time.Millisecond
	// watchRetry is how long a subscription that broke waits before the next, and a look that failed.
	watchRetry = time.Second

	watchBuffer = 1 << 20
)

// Watch calls look at the start, whenever something about the devices, addresses or default routes of this network
// namespace may have changed, whenever there is something in the channel again, and every eight seconds, until the context
// ends. It is level-triggered: an event says that there is something to look at, and a lost one is an event too. Of devices
// that isPod knows by their names it is told otherwise: they come and go all the time.
func Watch(ctx context.Context, log *slog.Logger, isPod func(name string) bool, again <-chan struct{}, look func() error) error {
	for {
		err := watch(ctx, isPod, again, look)
		if ctx.Err() != nil {
			return nil
		}
		log.Warn("following the node's devices: trying again", "error", err)
		if !sleep(ctx, watchRetry) {
			return nil
		}
	}
}

// sleep reports whether the time passed before the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// watch looks until the context ends, a look fails or a subscription breaks.
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
		if !sleep(ctx, lookApart) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-broken:
			return err
		case <-wake:
		case <-again:
		case <-time.After(lookEvery):
		}
	}
}

// subscribe returns a channel that has something in it whenever there is something to look at, and one for the error
// that ends this: a subscription ends with its first error, that events were lost among them.
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
		default: // the first says enough
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
			// Every device has one of IPv6 that is its own alone, and stands for nothing.
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

// follow hands on what a subscription brings, until it ends.
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
