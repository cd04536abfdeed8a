// Package datapath loads the programs, attaches them and keeps what has to outlive the agent pinned: the maps and the
// links. What the maps say is the business of whoever writes their Tables.
//
// Everything is found by its pin, nothing by an id, so CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are enough. Traffic flows on
// the pinned maps and links while no agent runs; a start adopts them, and finishes or undoes what an earlier one left
// half done.
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
	"fairlead.io/fairlead/pkg/maps"
)

// Config says where a Datapath lives.
type Config struct {
	BPFFS      string   // a mounted bpf filesystem
	CgroupRoot string   // the cgroup2 directory whose processes are served; empty to find the root
	HostNetns  uint64   // the cookie of the node's own network namespace; 0 for the one that the process is in
	OnDemand   bool     // attach programs that only some frontends need when there are any, see Prepare; otherwise all
	Packets    *Packets // nil to leave the devices alone
	// Congestion is what the node calls the congestion control of connections that choose none, if pods may have another; empty if not.
	Congestion string
	Log        *slog.Logger // nil for slog.Default

	// failpoint is called before every step that a crash may precede. Tests use it to fail or to die there.
	failpoint func(step string) error
}

// Datapath owns the pins, the programs and the links below one bpf filesystem. A lock keeps a second one away. Its methods may be called from several goroutines; Tables says what that means for the tables.
type Datapath struct {
	pins   pins
	cgroup cgroup
	log    *slog.Logger
	step   func(string) error
	lock   *os.File

	hostNetns  uint64
	congestion string
	token      token // the programs that this process loads know its dials by it

	// changing is held by whoever replaces maps or programs, from the first look to the last step, and taken before mu,
	// which is held only where others could see half of it. Either of them is enough to read what maps and programs there
	// are: so loading, and carrying rows over, keep nobody waiting who asks, follows devices or mends links.
	changing sync.Mutex
	mu       sync.Mutex
	adopted  bool
	switched bool // programs of this version use what takes the place of another version's maps
	features Features
	maps     *maps.Maps
	tables   *maps.Tables
	programs programs // what the links run; nil before Attach
	// hookTypes are where all programs of sockets are attached to, by their names; nil before somebody asks.
	hookTypes map[string]ebpf.AttachType
	links     map[string]link.Link // by program
	attached  Attachment
	needs     hookSet // of the frontends so far

	packets Packets // no device is served by its zero value
	hooks   *devices.Hooks
	outside outside
	former  former

	table    *table      // nil unless there are two maps of established flows; for whoever holds changing
	carrying atomic.Bool // flows are in both, or in the new one

	pushedOut uint64 // clients with session affinity, ever, as of the last look at all of them; for whoever holds changing
}

// ErrNoMaps is returned by what needs maps before Create or adoption gave any.
var ErrNoMaps = errors.New("no maps yet")

// ErrInUse is returned by Open while another process has the pins open.
var ErrInUse = errors.New("another agent is at work")

// Open checks the place, removes what an interrupted Create, Attach or Grow left, finishes an interrupted GrowFlows, and
// opens the maps if there are pinned ones. Nothing is attached or changed by it. Adopted maps may differ from those that the attached programs use until
// Attach has run: nothing may be written before.
func Open(config Config) (*Datapath, error) {
	d := &Datapath{pins: newPins(config.BPFFS), log: config.Log, step: config.failpoint, links: map[string]link.Link{}, token: newToken()}
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
	if err := CheckBPFFS(config.BPFFS); err != nil {
		return nil, err
	}
	var err error
	if d.cgroup, err = findCgroup(config.CgroupRoot); err != nil {
		return nil, err
	}
	// Kernels before 5.11 charge maps to this limit; later ones do not have it, and it takes a capability to raise.
	if err := rlimit.RemoveMemlock(); err != nil {
		d.log.Debug("memory lock limit stays", "error", err)
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
	if err := d.carryOlder(opened, maps.AllRows); err != nil {
		return errors.Join(err, opened.Close())
	}
	tables, err := opened.Tables()
	if err != nil {
		return errors.Join(err, opened.Close())
	}
	d.maps, d.tables, d.adopted = opened, tables, true
	return nil
}

// Adopted reports whether Open found maps that an earlier process made.
func (d *Datapath) Adopted() bool { return d.adopted }

// Create makes and pins new maps of at least the given sizes. The whole set appears at once: a crash before that leaves
// nothing that the next Open would adopt. It fails when there are maps already.
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

// Tables returns the tables of the maps, nil when there are none. They are valid until the next Grow or Close: whoever
// keeps them must not touch them during one and ask again after it.
func (d *Datapath) Tables() *maps.Tables {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tables
}

// Maps returns the maps, nil when there are none. Like the tables they are valid until the next Grow or Close.
func (d *Datapath) Maps() *maps.Maps {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.maps
}

// Sizes returns the sizes of the maps, zero when there are none.
func (d *Datapath) Sizes() maps.Sizes {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return maps.Sizes{}
	}
	return d.maps.Sizes()
}

// Close lets go of everything. Maps, programs and links stay pinned and at work.
func (d *Datapath) Close() error {
	d.former.close()
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

// programs are loaded programs by name.
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
		return 0, errors.New("the kernel does not tell the program's id")
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
