// Package fabric leads packets to the pods of other nodes: by routes to nodes on the same link, or through a tunnel to any.
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
	None   = "none"   // the network knows the way
	Native = "native" // routes to the nodes on the same links; the network knows the way to others
	VXLAN  = "vxlan"  // a tunnel
)

const (
	// lookEvery is how often it is looked for what is missing, or over, although nothing was heard.
	lookEvery = 10 * time.Second
	// lookApart is the least time between two looks.
	lookApart = 200 * time.Millisecond
)

// Config is what a Fabric needs.
type Config struct {
	Mode  string
	Store *model.Store
	// CIDRs returns the networks of this node's pods, or why they are not known.
	CIDRs func() ([]netip.Prefix, error)
	// MTU returns that of the devices below a tunnel.
	MTU func() (int, error)
	Log *slog.Logger
}

// Stats is how a Fabric is doing.
type Stats struct {
	Mode    string
	Nodes   int // that are reached by routes of ours
	Routes  int
	Refused []string // claims of nodes that are not believed, and why
	Left    []string // networks that are left to others, and why
	Mended  uint64   // routes and neighbours that somebody had removed
	Changes uint64   // of routes and neighbours that the kernel was asked for
	Error   string
}

// Fabric keeps the ways to other nodes' pods.
type Fabric struct {
	cfg    Config
	kernel *kernel

	// What the kernel has, as of the last look and what was done since. Only Run changes it.
	around surroundings
	device int
	looked bool

	mu         sync.Mutex
	have       map[netip.Prefix]route
	neighbours map[netip.Addr][6]byte
	devices    map[int]bool // that routes use
	stats      Stats
}

// New returns a Fabric that does nothing before Run.
func New(cfg Config) (*Fabric, error) {
	k, err := dial()
	if err != nil {
		return nil, err
	}
	return &Fabric{cfg: cfg, kernel: k, have: map[netip.Prefix]route{}, neighbours: map[netip.Addr][6]byte{}, stats: Stats{Mode: cfg.Mode}}, nil
}

// Stats returns how it is doing.
func (f *Fabric) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

// Run keeps the ways right until the context ends, and leaves them.
func (f *Fabric) Run(ctx context.Context) error {
	defer f.kernel.Close()
	if f.cfg.Mode == None {
		// An agent before may have run with another mode.
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
		f.note(f.look())
		f.wait(ctx, heard)
	}
	return nil
}

// wait returns when it is time for a look, and follows the nodes until then.
func (f *Fabric) wait(ctx context.Context, heard <-chan struct{}) {
	late, early := time.After(lookEvery), time.After(lookApart)
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
			if f.looked {
				f.note(f.follow())
			}
		}
	}
}

// note remembers what went wrong, and says it if it is new.
func (f *Fabric) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	f.mu.Lock()
	was := f.stats.Error
	f.stats.Error = text
	f.mu.Unlock()
	if text != "" && text != was {
		f.cfg.Log.Warn("leading to the pods of other nodes: trying again", "error", text)
	}
}

// look finds out what the kernel has and makes it what it should be.
func (f *Fabric) look() error {
	f.looked = false
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
		if known, err = listNeighbours(f.device); err != nil {
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
			f.stats.Mended++
		}
	}
	for addr, mac := range f.neighbours {
		if known[addr] != mac {
			f.stats.Mended++
		}
	}
	f.have, f.neighbours, f.around = have, known, around
	f.mu.Unlock()
	f.looked = true
	results, err := f.kernel.apply(strays)
	return errors.Join(append(results, err, f.follow())...)
}

// prepare makes the tunnel's device what it should be, or removes it.
func (f *Fabric) prepare(own []netip.Prefix) (int, error) {
	if f.cfg.Mode != VXLAN {
		return 0, removeDevice()
	}
	mtu, err := f.cfg.MTU()
	if err != nil {
		return 0, err
	}
	self := f.cfg.Store.Self()
	return setDevice(macOf(self.Name), mtu-Overhead(self.Addrs), own)
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

// follow makes the routes what the nodes ask for, and asks the kernel for nothing but what is different.
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
	f.tell(want)
	return f.apply(want)
}

// tell says what is refused that was not before.
func (f *Fabric) tell(want *plan) {
	f.mu.Lock()
	was := f.stats.Refused
	f.stats.Nodes, f.stats.Refused, f.stats.Left = want.nodes, want.refused, want.left
	f.mu.Unlock()
	for _, why := range want.refused {
		if _, known := slices.BinarySearch(was, why); !known {
			f.cfg.Log.Warn("a node claims a network that it does not get", "claim", why)
		}
	}
}

// apply makes what is different. A route comes after the neighbour that it needs, and goes before it.
func (f *Fabric) apply(want *plan) error {
	f.mu.Lock()
	have, neighbours := f.have, f.neighbours
	f.have, f.neighbours, f.devices = want.routes, want.neighbours, map[int]bool{}
	for _, r := range want.routes {
		f.devices[r.device] = r.device != 0
	}
	f.mu.Unlock()
	changes := changesTo(f.device, have, neighbours, want)
	results, err := f.kernel.apply(changes)
	errs := []error{err}
	for _, result := range results {
		if result != nil {
			errs = append(errs, result)
		}
	}
	f.mu.Lock()
	f.stats.Routes, f.stats.Changes = len(want.routes), f.kernel.sent
	f.mu.Unlock()
	return brief(errs)
}

// brief joins errors, of which there may be one for every node.
func brief(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if more := len(errs) - 3; more > 0 {
		errs = append(errs[:3], fmt.Errorf("and %d more errors", more))
	}
	return errors.Join(errs...)
}

// changesTo returns what leads from what there is to what there should be.
func changesTo(device int, have map[netip.Prefix]route, neighbours map[netip.Addr][6]byte, want *plan) []change {
	var changes []change
	for _, addr := range slices.SortedFunc(maps.Keys(want.neighbours), netip.Addr.Compare) {
		if mac := want.neighbours[addr]; neighbours[addr] != mac {
			changes = append(changes, neighbour{addr, mac}.change(device, true))
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
	for addr, mac := range neighbours {
		if _, wanted := want.neighbours[addr]; !wanted {
			changes = append(changes, neighbour{addr, mac}.change(device, false))
		}
	}
	return changes
}

// Remove removes all that a Fabric has made, and returns how many routes there were. It may be repeated.
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
