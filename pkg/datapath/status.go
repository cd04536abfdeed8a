package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/flowtable"
	"fairlead.io/fairlead/pkg/hostfs"
	"fairlead.io/fairlead/pkg/phrase"
)

// Status says what is attached where.
type Status struct {
	CgroupRoot string          `json:"cgroupRoot,omitempty"`
	Programs   []ProgramStatus `json:"programs"`
	Features   map[string]bool `json:"features,omitempty"`   // of the kernel
	Attachment *Attachment     `json:"attachment,omitempty"` // result of the last check; nil before the first
	Outside    *Outside        `json:"outside,omitempty"`    // nil if no device is to be served
	Pins       Pins            `json:"-"`                    // without what is missing, which is read with the maps
}

// ProgramStatus is the state of one program. Tag and Instructions are known only for programs that
// this process loaded, Instructions only if the kernel reports it.
type ProgramStatus struct {
	Name string `json:"name"`
	Idle bool   `json:"idle,omitempty"` // not needed, so not attached
	// Attached reports whether its pinned link is attached to the cgroup root and runs the program
	// this process loaded, if any.
	Attached     bool   `json:"attached"`
	ID           uint32 `json:"id,omitempty"`
	Tag          string `json:"tag,omitempty"`
	Instructions uint32 `json:"instructions,omitempty"` // number that the verifier processed
}

// Status returns the current state of every program of this version, sorted by name. Before Attach
// none is idle.
func (d *Datapath) Status() (Status, error) {
	status, err := d.lockedStatus()
	if status.Outside != nil {
		status.Outside.readLinks()
	}
	return status, err
}

func (d *Datapath) lockedStatus() (Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	status := Status{
		CgroupRoot: d.cgroup.Path, Features: map[string]bool{"refuse with ECONNREFUSED": d.features.CanRefuse}, Pins: d.repinned, Outside: d.outsideStatus(),
	}
	if checked := d.attached; !checked.Checked.IsZero() {
		status.Attachment = &checked
	}
	if err := d.listHooks(); err != nil {
		return status, err
	}
	for _, name := range slices.Sorted(maps.Keys(d.hookTypes)) {
		prog, err := d.programStatus(name, d.hookTypes[name])
		if err != nil {
			return status, fmt.Errorf("inspect program %s: %w", name, err)
		}
		status.Programs = append(status.Programs, prog)
	}
	return status, nil
}

// Text returns the line shown in the status of the node.
func (d *Status) Text() string {
	attached, idle := 0, 0
	for _, p := range d.Programs {
		switch {
		case p.Attached:
			attached++
		case p.Idle:
			idle++
		}
	}
	text := fmt.Sprintf("%d of %d programs attached", attached, len(d.Programs)-idle)
	if idle > 0 {
		text = fmt.Sprintf("%d of %d needed programs attached", attached, len(d.Programs)-idle)
	}
	if d.CgroupRoot != "" {
		text += " to " + d.CgroupRoot
	}
	var lacks []string
	for name, have := range d.Features {
		if !have {
			lacks = append(lacks, name)
		}
	}
	slices.Sort(lacks)
	return text + phrase.List(", kernel without ", lacks, "")
}

// listHooks reads the list of programs, once: reading the object costs more than the rest of
// Status.
func (d *cgroupLinks) listHooks() error {
	if d.hookTypes != nil {
		return nil
	}
	spec, err := bpf.LoadSock()
	if err != nil {
		return fmt.Errorf("read program specs: %w", err)
	}
	d.hookTypes = map[string]ebpf.AttachType{}
	for name, program := range spec.Programs {
		d.hookTypes[name] = program.AttachType
	}
	return nil
}

func (d *cgroupLinks) programStatus(name string, attach ebpf.AttachType) (ProgramStatus, error) {
	status := ProgramStatus{Name: name}
	if err := d.openLink(name); err != nil {
		return status, err
	}
	if l := d.links[name]; l != nil {
		info, err := l.Info()
		if err != nil {
			return status, err
		}
		status.ID = uint32(info.Program)
		if status.Attached, err = d.fits(l, attach); err != nil {
			return status, err
		}
	}
	prog, ok := d.programs[name]
	if !ok {
		status.Idle = d.programs != nil
		return status, nil
	}
	info, err := prog.Info()
	if err != nil {
		return status, err
	}
	if id, ok := info.ID(); ok && uint32(id) == status.ID {
		status.Tag = info.Tag
		status.Instructions, _ = info.VerifiedInstructions()
		return status, nil
	}
	status.Attached = false
	return status, nil
}

// Cleanup detaches every program and removes every pin and directory below the bpf filesystem.
// Nothing of this need exist, so Cleanup may be repeated, and an interrupted one finished. The
// stack continues established connections if netfilter has rules that do what the programs did.
func Cleanup(bpffs string) (flowtable.Exported, error) {
	p := newPins(bpffs)
	if _, err := os.Stat(p.top); errors.Is(err, fs.ErrNotExist) {
		return flowtable.Exported{}, nil
	}
	if err := hostfs.CheckBPFFS(bpffs); err != nil {
		return flowtable.Exported{}, err
	}
	over := flowtable.Export(p.maps)
	if err := p.detachAll(); err != nil {
		return over, err
	}
	// Retire the set of maps as a whole: half of it would be taken for maps of an older version.
	if err := os.Rename(p.maps, p.stage); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return over, fmt.Errorf("retire maps: %w", err)
	}
	if err := os.RemoveAll(p.root); err != nil {
		return over, fmt.Errorf("remove pins in %s: %w", p.root, err)
	}
	// Leave what others keep beside it for them to remove.
	if err := os.Remove(p.top); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return over, fmt.Errorf("remove %s: %w", p.top, err)
	}
	return over, nil
}

// detachAll detaches every program.
func (p pins) detachAll() error {
	names, err := p.linkNames()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := detach(p.link(name)); err != nil {
			return err
		}
	}
	return errors.Join(devices.Cleanup(p.devs), p.clearStage())
}

// CgroupRoot returns the cgroup whose sockets the programs see.
func (d *cgroupLinks) CgroupRoot() string { return d.cgroup.Path }
