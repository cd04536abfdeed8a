// Package datapath loads and attaches the programs, and keeps pinned what has to outlive the agent:
// the maps and the links. The users of Tables decide what the maps contain.
//
// It finds everything by its pin, nothing by an id, so CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON
// suffice. Traffic flows through the pinned maps and links while no agent runs. A starting agent
// adopts them, and finishes or undoes what an earlier one left half done.
package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"

	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/flowtable"
	"fairlead.io/fairlead/pkg/hostfs"
	"fairlead.io/fairlead/pkg/maps"
)

// Config says where and how a Datapath runs.
type Config struct {
	BPFFS      string // a mounted bpf filesystem
	CgroupRoot string // the cgroup2 directory whose processes are served; empty to use the root
	HostNetns  uint64 // cookie of the node's network namespace; 0 if this process is in it
	// OnDemand attaches programs that only some frontends need once there are any (see Prepare),
	// rather than all at once.
	OnDemand bool
	Packets  *Packets // nil to leave the devices alone
	// Congestion is the congestion control of connections that choose none, if pods may have
	// another; otherwise empty.
	Congestion string
	Log        *slog.Logger // nil means slog.Default

	// failpoint is called before every step that a crash may precede. Tests use it to fail or die
	// there.
	failpoint func(step string) error
}

// Datapath owns the pins, programs and links below one bpf filesystem; a lock keeps a second
// process out. Its methods are safe for concurrent use, except for what Tables says about the
// tables.
type Datapath struct {
	*shared
	*cgroupLinks
	*deviceLinks
	*grower

	lock     *os.File
	adopted  bool
	repinned Pins
	importer *flowtable.Importer
}

// shared is what the parts of a Datapath share.
type shared struct {
	pins pins
	log  *slog.Logger
	step func(string) error // see Config.failpoint

	// changing is held while maps or programs are replaced, from the first look to the last step.
	// It is locked before mu, which is held only while others could see half of the change. Either
	// lock is enough to read which maps and programs there are. So loading programs and copying
	// rows don't block queries, device events and link repairs.
	changing sync.Mutex
	mu       sync.Mutex
	maps     *maps.Maps
	tables   *maps.Tables
	needs    hookSet     // hooks needed by the frontends so far
	table    *table      // nil unless there are two maps of established flows; guarded by changing
	copying  atomic.Bool // flows are in both maps, or in the new one
}

// ErrNoMaps is returned by methods that need maps, before Create made or Open adopted any.
var ErrNoMaps = errors.New("no maps yet")

// ErrInUse is returned by Open while another process holds the lock.
var ErrInUse = errors.New("another agent is at work")

// Open checks the environment, removes what an interrupted Create, Attach or Grow left, finishes an
// interrupted GrowFlows, and opens the pinned maps if there are any. Beyond that it attaches and
// changes nothing. Until Attach has run, the attached programs may use other maps than the adopted
// ones, so nothing may be written before.
func Open(config Config) (*Datapath, error) {
	common := &shared{pins: newPins(config.BPFFS), log: config.Log, step: config.failpoint}
	atCgroup := &cgroupLinks{shared: common, links: map[string]link.Link{}, token: newToken()}
	atDevices := &deviceLinks{shared: common, checked: newToken()}
	d := &Datapath{
		shared: common, cgroupLinks: atCgroup, deviceLinks: atDevices,
		grower: &grower{shared: common, cgroupLinks: atCgroup, deviceLinks: atDevices},
	}
	if !config.OnDemand {
		d.needs = allHooks
	}
	if config.Congestion != "" {
		d.needs |= congestionHook
		d.congestion = config.Congestion
	}
	if d.log == nil {
		d.log = slog.Default()
	}
	d.openHooks(config.Packets)
	if d.step == nil {
		d.step = func(string) error { return nil }
	}
	if err := hostfs.CheckBPFFS(config.BPFFS); err != nil {
		return nil, err
	}
	var err error
	if d.cgroup, err = hostfs.FindCgroup(config.CgroupRoot); err != nil {
		return nil, err
	}
	// Kernels before 5.11 charge maps to this limit. Later ones don't, and raising it takes a
	// capability.
	if err := rlimit.RemoveMemlock(); err != nil {
		d.log.Debug("cannot raise the memory lock limit", "error", err)
	}
	if err := checkKernel(needs()); err != nil {
		return nil, err
	}
	if d.hostNetns = config.HostNetns; d.hostNetns == 0 {
		if d.hostNetns, err = HostNetns(); err != nil {
			return nil, err
		}
	}
	if d.lock, err = d.pins.prepare(); err != nil {
		return nil, err
	}
	d.importer = flowtable.NewImporter(d.log, &d.changing, func() *maps.Maps { return d.maps })
	if err := errors.Join(d.finishTable(), d.adopt()); err != nil {
		return nil, errors.Join(err, d.lock.Close())
	}
	return d, nil
}

func (d *Datapath) adopt() error {
	opened, err := maps.Open(d.pins.maps, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := d.copyOlder(opened, maps.AllRows); err != nil {
		return errors.Join(err, opened.Close())
	}
	tables, err := opened.Tables()
	if err != nil {
		return errors.Join(err, opened.Close())
	}
	d.maps, d.tables, d.adopted = opened, tables, true
	return nil
}

// Adopted reports whether Open found maps that an earlier process created.
func (d *Datapath) Adopted() bool { return d.adopted }

// Create creates and pins maps of at least the given sizes. The whole set appears at once: if it
// crashes before, the next Open adopts nothing. It fails if there are maps already.
func (d *Datapath) Create(sizes maps.Sizes) (err error) {
	d.changing.Lock()
	defer d.changing.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps != nil {
		return errors.New("create maps: there are maps already")
	}
	created, err := maps.Create(sizes)
	if err != nil {
		return err
	}
	tables, err := created.Tables()
	if err != nil {
		return errors.Join(err, created.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.pins.clearStage(), tables.Close(), created.Close())
		}
	}()
	if err := d.step("create: stage"); err != nil {
		return err
	}
	if err := d.pins.openStage(); err != nil {
		return err
	}
	if err := created.Pin(d.pins.stage); err != nil {
		return err
	}
	if err := d.step("create: publish"); err != nil {
		return err
	}
	if err := rename(d.pins.stage, d.pins.maps); err != nil {
		return err
	}
	d.maps, d.tables = created, tables
	return nil
}

// Tables returns the tables of the maps, nil if there are none. They are valid until the next Grow
// or Close: callers must not use them meanwhile and must ask again afterward.
func (d *shared) Tables() *maps.Tables {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tables
}

// Maps returns the maps, nil if there are none. Like the tables, they are valid until the next Grow
// or Close.
func (d *shared) Maps() *maps.Maps {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.maps
}

// OpenEnforceMaps returns maps that are valid until they grow themselves. The caller must close them.
func (d *shared) OpenEnforceMaps() (*maps.EnforceMaps, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, ErrNoMaps
	}
	return d.maps.OpenEnforceMaps()
}

// Sizes returns the sizes of the maps, zero if there are none.
func (d *shared) Sizes() maps.Sizes {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return maps.Sizes{}
	}
	return d.maps.Sizes()
}

// Close closes everything. Maps, programs and links stay pinned and attached.
func (d *Datapath) Close() error {
	d.importer.Close()
	d.changing.Lock()
	defer d.changing.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for name, l := range d.links {
		if err := l.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close link %s: %w", name, err))
		}
	}
	clear(d.links)
	errs = append(errs, d.hooks.Close(), d.outside.programs.Close(), d.programs.close())
	d.outside.programs = devices.Programs{}
	if d.tables != nil {
		errs = append(errs, d.tables.Close())
	}
	if d.table != nil {
		errs = append(errs, d.table.close())
	}
	if d.maps != nil {
		errs = append(errs, d.maps.Close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
	}
	d.programs, d.tables, d.maps, d.lock, d.table = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// programs are loaded programs, by name.
type programs map[string]program

type program struct {
	*ebpf.Program
	attach ebpf.AttachType
}

func (p program) id() (ebpf.ProgramID, error) {
	info, err := p.Info()
	if err != nil {
		return 0, err
	}
	id, ok := info.ID()
	if !ok {
		return 0, errors.New("the kernel does not report the program's id")
	}
	return id, nil
}

func (p programs) close() error {
	var errs []error
	for name, prog := range p {
		if err := prog.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close program %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
