// Package fabric routes packets to the pods of other nodes: directly to nodes on the same link, or
// through a tunnel to any.
package fabric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/model"
)

// The modes.
const (
	None   = "none"   // the network has the routes
	Native = "native" // routes to nodes on the same links; the network has those to others
	VXLAN  = "vxlan"  // a tunnel to every node
)

const (
	// syncEvery is the interval between looks for what is missing or left over when no event asks
	// for one.
	syncEvery = 10 * time.Second
	// syncApart is the least time between two looks.
	syncApart = 200 * time.Millisecond
)

// Config is what a Fabric needs.
type Config struct {
	Mode  string
	Store *model.Store
	// CIDRs returns the networks of this node's pods, or why they are not known.
	CIDRs func() ([]netip.Prefix, error)
	// MTU returns the MTU of the devices that carry the tunnel.
	MTU func() (int, error)
	// Guard has the programs check what comes out of the tunnel. It is called while the tunnel's
	// device is down, so nothing comes out unchecked.
	Guard func() error
	// Accepted gets the networks of other nodes' pods, and the node of each, before there are routes
	// to them.
	Accepted func(map[netip.Prefix]string) error
	Log      *slog.Logger
}

// Fabric keeps the routes to other nodes' pods.
type Fabric struct {
	cfg    Config
	kernel *kernel

	// The state of the kernel, as of the last look and the changes since. Only Run changes it.
	around surroundings
	device int
	synced bool

	mu        sync.Mutex
	have      map[netip.Prefix]route
	neighbors map[netip.Addr][6]byte
	devices   map[int]bool // that our routes use
	status    Status
}

// New returns a Fabric that does nothing until Run.
func New(cfg Config) (*Fabric, error) {
	k, err := dial()
	if err != nil {
		return nil, err
	}
	return &Fabric{cfg: cfg, kernel: k, have: map[netip.Prefix]route{}, neighbors: map[netip.Addr][6]byte{}, status: Status{Mode: cfg.Mode, Pending: cfg.Mode != None}}, nil
}

// Status returns the current state.
func (f *Fabric) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Run keeps the routes right until the context ends, and then leaves them in place.
func (f *Fabric) Run(ctx context.Context) error {
	defer f.kernel.Close()
	if f.cfg.Mode == None {
		// An earlier agent may have run in another mode.
		if _, err := Remove(); err != nil {
			f.note(err)
		}
		<-ctx.Done()
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-f.cfg.Store.Synced():
	}
	heard, err := f.listen(ctx)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		f.note(f.sync())
		f.wait(ctx, heard)
	}
	return nil
}

// wait returns when it is time for the next look, and follows changes of nodes until then.
func (f *Fabric) wait(ctx context.Context, heard <-chan struct{}) {
	late, early := time.After(syncEvery), time.After(syncApart)
	isHeard := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-late:
			return
		case <-early:
			if early = nil; isHeard {
				return
			}
		case <-heard:
			if isHeard = true; early == nil {
				return
			}
		case <-f.cfg.Store.NodesChanged():
			if f.synced {
				f.note(f.follow())
			}
		}
	}
}

// note records an error, and logs it if it is new.
func (f *Fabric) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	f.mu.Lock()
	was := f.status.Error
	f.status.Error = text
	f.mu.Unlock()
	if text != "" && text != was {
		f.cfg.Log.Warn("cannot keep the routes to other nodes' pods, trying again", "error", text)
	}
}

// sync reads the state of the kernel and corrects it.
func (f *Fabric) sync() error {
	f.synced = false
	own, err := f.own()
	if err != nil {
		return err
	}
	if f.device, err = f.prepare(own); err != nil {
		return err
	}
	list, err := listRoutes()
	if err != nil {
		return err
	}
	known := map[netip.Addr][6]byte{}
	if f.device != 0 {
		if known, err = listNeighbors(f.device); err != nil {
			return err
		}
	}
	ours, around := surround(list, f.device)
	have, strays := map[netip.Prefix]route{}, []change{}
	for i := range ours {
		if r := ours[i].route; ours[i].metric == metric {
			have[r.to] = r
		} else {
			strays = append(strays, r.remove(ours[i].metric))
		}
	}
	f.mu.Lock()
	for to, r := range f.have {
		if have[to] != r {
			f.status.Mended++
		}
	}
	for addr, mac := range f.neighbors {
		if known[addr] != mac {
			f.status.Mended++
		}
	}
	f.have, f.neighbors, f.around = have, known, around
	f.mu.Unlock()
	f.synced = true
	results, err := f.kernel.apply(strays)
	return errors.Join(append(results, err, f.follow())...)
}

// prepare creates or corrects the tunnel's device, or removes it if the mode has none.
func (f *Fabric) prepare(own []netip.Prefix) (int, error) {
	if f.cfg.Mode != VXLAN {
		return 0, removeDevice()
	}
	mtu, err := f.cfg.MTU()
	if err != nil {
		return 0, err
	}
	self := f.cfg.Store.Self()
	return setDevice(macOf(self.Name), mtu-Overhead(self.Addrs), own, f.cfg.Guard)
}

// own returns the networks of this node's pods.
func (f *Fabric) own() ([]netip.Prefix, error) {
	if self := f.cfg.Store.Self(); len(self.Addrs) == 0 {
		return nil, fmt.Errorf("the Node %s is not known yet, or has no address", self.Name)
	}
	list, err := f.cfg.CIDRs()
	own := make([]netip.Prefix, 0, len(list))
	for _, cidr := range list {
		own = append(own, cidr.Masked())
	}
	return own, err
}

// follow makes the routes match the nodes, and sends the kernel only the differences.
func (f *Fabric) follow() error {
	own, err := f.own()
	if err != nil {
		return err
	}
	p := planner{
		mode: f.cfg.Mode, self: f.cfg.Store.Self(), own: own, device: f.device, surroundings: f.around,
		has: func(r route) bool { return f.have[r.to] == r },
	}
	want := p.make(f.cfg.Store.Others())
	f.logRefused(want)
	if err := f.cfg.Accepted(want.owners); err != nil {
		return err
	}
	return f.apply(want)
}

// logRefused logs the claims that are newly refused.
func (f *Fabric) logRefused(want *plan) {
	f.mu.Lock()
	was := f.status.Refused
	f.status.Nodes, f.status.Refused, f.status.Left = want.nodes, want.refused, want.left
	f.mu.Unlock()
	for _, why := range want.refused {
		if _, known := slices.BinarySearch(was, why); !known {
			f.cfg.Log.Warn("ignoring a node's claim to a network", "claim", why)
		}
	}
}

// apply makes the changes to get from the current state to want. A route is added after the
// neighbor that it needs, and removed before it.
func (f *Fabric) apply(want *plan) error {
	f.mu.Lock()
	have, neighbors := f.have, f.neighbors
	f.have, f.neighbors, f.devices = want.routes, want.neighbors, map[int]bool{}
	for _, r := range want.routes {
		f.devices[r.device] = r.device != 0
	}
	f.mu.Unlock()
	changes := changesTo(f.device, have, neighbors, want)
	results, err := f.kernel.apply(changes)
	errs := []error{err}
	for _, result := range results {
		if result != nil {
			errs = append(errs, result)
		}
	}
	f.mu.Lock()
	f.status.Pending, f.status.Routes, f.status.Changes = false, len(want.routes), f.kernel.sent
	f.mu.Unlock()
	return brief(errs)
}

// brief joins errors, and cuts them short, since there may be one for every node.
func brief(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if more := len(errs) - 3; more > 0 {
		errs = append(errs[:3], fmt.Errorf("and %d more errors", more))
	}
	return errors.Join(errs...)
}

// changesTo returns the changes that lead from the current state to want.
func changesTo(device int, have map[netip.Prefix]route, neighbors map[netip.Addr][6]byte, want *plan) []change {
	var changes []change
	for _, addr := range slices.SortedFunc(maps.Keys(want.neighbors), netip.Addr.Compare) {
		if mac := want.neighbors[addr]; neighbors[addr] != mac {
			changes = append(changes, neighbor{addr, mac}.change(device, true))
		}
	}
	for _, to := range slices.SortedFunc(maps.Keys(want.routes), netip.Prefix.Compare) {
		if r := want.routes[to]; have[to] != r {
			changes = append(changes, r.add())
		}
	}
	for to, r := range have {
		if _, wanted := want.routes[to]; !wanted {
			changes = append(changes, r.remove(metric))
		}
	}
	for addr, mac := range neighbors {
		if _, wanted := want.neighbors[addr]; !wanted {
			changes = append(changes, neighbor{addr, mac}.change(device, false))
		}
	}
	return changes
}

// Remove removes everything that a Fabric has made, and returns the number of routes. It is
// idempotent.
func Remove() (routes int, err error) {
	k, err := dial()
	if err != nil {
		return 0, err
	}
	defer k.Close()
	list, err := listRoutes()
	if err != nil {
		return 0, err
	}
	var changes []change
	for i := range list {
		if list[i].isOurs() {
			changes = append(changes, list[i].remove(list[i].metric))
		}
	}
	results, err := k.apply(changes)
	return len(changes), errors.Join(brief(append(results, err)), removeDevice())
}
