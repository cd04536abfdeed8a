package sockmap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/pin"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
)

// generation is one set of maps with the programs that use them, all pinned in one directory. It is
// never changed: other programs, or the same with other settings, are another generation. Sockets
// stay in the generation they are in, so it outlives its agent until it has no sockets left.
type generation struct {
	dir   string
	maps  map[string]*ebpf.Map
	links map[string]link.Link // attached to the kernel's functions and tracepoints
	iters map[string]*link.Iter
	blind error // why it does not see all reads of sockets in the map, if it was loaded here
}

const (
	socksMap   = "socks"
	pairsMap   = "pairs"
	rulesMap   = "short_rules"
	controlMap = "sockmap_control"
	talliesMap = "sockmap_tallies"
	wakesMap   = "sockmap_wakes"
	exceptMap  = "sockmap_except"
)

func mapNames() []string {
	return []string{socksMap, pairsMap, "halves", rulesMap, controlMap, talliesMap, wakesMap, exceptMap, "splicers", "ends", "candidates"}
}

const (
	forgetLink = bpf.SockmapProgSockmapForget
	readLink   = bpf.SockmapProgSockmapRead
	admitIter  = bpf.SockmapProgSockmapAdmit
	sweepIter  = bpf.SockmapProgSockmapSweep
	countIter  = bpf.SockmapProgSockmapCount
)

// tracing returns the programs that every generation needs, in the order in which they are attached.
func tracing() []string { return []string{forgetLink, readLink} }

// seeing returns the programs that see all reads of sockets in the map, the better one first.
func seeing() []string { return []string{bpf.SockmapProgSockmapSeen, bpf.SockmapProgSockmapSeenOfAll} }

func (g *generation) pin(name string) string { return filepath.Join(g.dir, name) }

// open opens whatever pins a generation has, which may be of another version, and requires those
// needed to empty it.
func open(dir string) (g *generation, err error) {
	g = &generation{dir: dir, maps: map[string]*ebpf.Map{}, links: map[string]link.Link{}, iters: map[string]*link.Iter{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open pins in %s: %w", dir, err), g.close())
		}
	}()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return g, err
	}
	for _, entry := range entries {
		if err := g.load(entry.Name()); err != nil {
			return g, err
		}
	}
	if g.maps[controlMap] == nil || g.maps[socksMap] == nil || g.iters[sweepIter] == nil {
		return g, fmt.Errorf("one of %s, %s and %s is missing", controlMap, socksMap, sweepIter)
	}
	return g, nil
}

func (g *generation) load(name string) error {
	pinned, err := pin.Load(g.pin(name), nil)
	if err != nil {
		return err
	}
	switch object := pinned.(type) {
	case *ebpf.Map:
		g.maps[name] = object
	case *link.Iter:
		g.iters[name] = object
	case link.Link:
		g.links[name] = object
	default:
		return errors.Join(fmt.Errorf("%s is a %T", name, pinned), pinned.Close())
	}
	return nil
}

// attach attaches loaded programs. The one that notes connections comes last, because ends must be
// forgotten once they are noted.
func (g *generation) attach(loaded *ebpf.Collection) error {
	err := link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: g.maps[socksMap].FD(), Program: loaded.Programs[bpf.SockmapProgSockmapMessage], Attach: ebpf.AttachSkMsgVerdict,
	})
	if err != nil {
		return fmt.Errorf("attach %s: %w", bpf.SockmapProgSockmapMessage, err)
	}
	over := map[string]*ebpf.Map{admitIter: g.maps["candidates"], sweepIter: g.maps[socksMap], countIter: g.maps[controlMap]}
	for name, overMap := range over {
		if g.iters[name], err = link.AttachIter(link.IterOptions{Program: loaded.Programs[name], Map: overMap}); err != nil {
			delete(g.iters, name)
			return fmt.Errorf("attach %s: %w", name, err)
		}
	}
	for _, name := range tracing() {
		if g.links[name], err = link.AttachTracing(link.TracingOptions{Program: loaded.Programs[name]}); err != nil {
			delete(g.links, name)
			return fmt.Errorf("attach %s: %w", name, err)
		}
	}
	return nil
}

// see attaches a program that sees all reads of sockets in the map, and has the others rely on it:
// the first of two that the kernel can attach. Without any they leave more connections to TCP.
func (g *generation) see(spec *ebpf.CollectionSpec) error {
	var errs []error
	for _, name := range seeing() {
		attached, err := g.attachLate(spec, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("attach %s: %w", name, err))
			continue
		}
		g.links[name] = attached
		return g.setControl(bpf.SockmapControlCONTROL_SEEN, 1)
	}
	g.blind = errors.Join(errs...)
	return nil
}

// isBlind reports whether no program sees all reads of sockets in the map.
func (g *generation) isBlind() bool {
	return !slices.ContainsFunc(seeing(), func(name string) bool { return g.links[name] != nil })
}

// seeLate lets a pinned generation see after all, if the kernel could not attach either program before.
func (g *generation) seeLate(spec *ebpf.CollectionSpec) error {
	if err := g.see(spec); err != nil {
		return err
	}
	for _, name := range seeing() {
		if l := g.links[name]; l != nil {
			if err := l.Pin(g.pin(name)); err != nil {
				return fmt.Errorf("pin %s: %w", name, err)
			}
		}
	}
	return nil
}

// attachLate loads one more program with the generation's maps, and attaches it.
func (g *generation) attachLate(spec *ebpf.CollectionSpec, name string) (link.Link, error) {
	one := spec.Copy()
	maps.DeleteFunc(one.Programs, func(other string, _ *ebpf.ProgramSpec) bool { return other != name })
	loaded, err := ebpf.NewCollectionWithOptions(one, ebpf.CollectionOptions{MapReplacements: g.maps})
	if err != nil {
		return nil, err
	}
	defer loaded.Close()
	return link.AttachTracing(link.TracingOptions{Program: loaded.Programs[name]})
}

// pinAll pins everything in a new directory, which is renamed to its final name when it is
// complete.
func (g *generation) pinAll(stage string) error {
	if err := os.Mkdir(stage, 0o700); err != nil {
		return fmt.Errorf("create pin directory: %w", err)
	}
	for name, m := range g.maps {
		if err := m.Pin(filepath.Join(stage, name)); err != nil {
			return fmt.Errorf("pin %s: %w", name, err)
		}
	}
	for name, l := range g.links {
		if err := l.Pin(filepath.Join(stage, name)); err != nil {
			return fmt.Errorf("pin %s: %w", name, err)
		}
	}
	for name, l := range g.iters {
		if err := l.Pin(filepath.Join(stage, name)); err != nil {
			return fmt.Errorf("pin %s: %w", name, err)
		}
	}
	if err := os.Rename(stage, g.dir); err != nil {
		return fmt.Errorf("rename pin directory: %w", err)
	}
	return nil
}

// retire stops noting new connections, and switches those that are noted to TCP.
func (g *generation) retire() error {
	errs := []error{g.setOn(false)}
	// The program that notes connections is detached first: the others forget what it has noted.
	for _, name := range append([]string{readLink}, slices.Sorted(maps.Keys(g.links))...) {
		if g.links[name] == nil {
			continue
		}
		if err := os.Remove(g.pin(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		errs = append(errs, g.links[name].Close())
		delete(g.links, name)
	}
	return errors.Join(errs...)
}

// isWhole reports whether all tracing programs are attached.
func (g *generation) isWhole() bool {
	for _, name := range tracing() {
		if g.links[name] == nil {
			return false
		}
	}
	return true
}

// remove deletes the pins. The generation must not have any sockets. Under the name of an
// unfinished generation the rest is never mistaken for a complete one.
func (g *generation) remove() error {
	stage := filepath.Join(filepath.Dir(g.dir), stageName)
	return errors.Join(os.RemoveAll(stage), os.Rename(g.dir, stage), os.RemoveAll(stage), g.close())
}

// close releases everything. What is done with it later fails.
func (g *generation) close() error {
	var errs []error
	for _, m := range g.maps {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	for _, l := range g.links {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	for _, l := range g.iters {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

func (g *generation) control(what bpf.SockmapControl) (value uint32, err error) {
	if err := g.maps[controlMap].Lookup(uint32(what), &value); err != nil {
		return 0, fmt.Errorf("read a switch of the programs: %w", err)
	}
	return value, nil
}

func (g *generation) setControl(what bpf.SockmapControl, value uint32) error {
	if err := g.maps[controlMap].Put(uint32(what), value); err != nil {
		return fmt.Errorf("set a switch of the programs: %w", err)
	}
	return nil
}

func (g *generation) setOn(on bool) error {
	value := uint32(0)
	if on {
		value = 1
	}
	return g.setControl(bpf.SockmapControlCONTROL_ON, value)
}

// admit puts the candidates into the map.
func (g *generation) admit() error {
	_, err := run(g.iters[admitIter])
	return err
}

// sweep checks all sockets in the map, and returns how many still have to leave it.
func (g *generation) sweep() (int, error) {
	look, err := g.control(bpf.SockmapControlCONTROL_LOOK)
	if err != nil {
		return 0, err
	}
	if look++; look == 0 { // zero stands for no sweep
		look++
	}
	if err := g.setControl(bpf.SockmapControlCONTROL_LOOK, look); err != nil {
		return 0, err
	}
	return run(g.iters[sweepIter])
}

// sockets returns how many sockets are in the map, as the kernel counts them. Programs of another
// version that cannot tell count as one if there are any.
func (g *generation) sockets() (int, error) {
	if g.iters[countIter] == nil {
		empty, err := g.isEmpty()
		if err != nil || empty {
			return 0, err
		}
		return 1, nil
	}
	said, err := g.iters[countIter].Open()
	if err != nil {
		return 0, fmt.Errorf("count sockets: %w", err)
	}
	defer said.Close()
	var count [4]byte
	if _, err := io.ReadFull(said, count[:]); err != nil {
		return 0, fmt.Errorf("count sockets: %w", err)
	}
	return int(binary.NativeEndian.Uint32(count[:])), nil
}

// isEmpty reports whether no socket is in the map.
func (g *generation) isEmpty() (bool, error) {
	var first uint64
	err := g.maps[socksMap].NextKey(nil, &first)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for sockets: %w", err)
	}
	return false, nil
}

// run reads an iterator to its end, and returns how much it wrote.
func run(iter *link.Iter) (written int, err error) {
	list, err := iter.Open()
	if err != nil {
		return 0, fmt.Errorf("run iterator: %w", err)
	}
	defer list.Close()
	piece := make([]byte, 32<<10)
	for {
		n, err := list.Read(piece)
		written += n
		switch {
		case errors.Is(err, io.EOF):
			return written, nil
		case errors.Is(err, unix.EAGAIN): // the kernel yielded in the middle of a long list
		case err != nil:
			return written, fmt.Errorf("run iterator: %w", err)
		}
	}
}

// generations returns the directories of all pinned generations. It leaves unfinished ones out, and
// with clear it removes them.
func generations(root string, clear bool) ([]string, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	var dirs []string
	for _, entry := range entries {
		dir := filepath.Join(root, entry.Name())
		if entry.Name() == stageName {
			if clear {
				if err := os.RemoveAll(dir); err != nil {
					return nil, fmt.Errorf("clear %s: %w", dir, err)
				}
			}
			continue
		}
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	return dirs, nil
}

// load loads and attaches a generation, of which nothing is pinned yet.
func load(dir string, spec *ebpf.CollectionSpec, excepted []string) (g *generation, err error) {
	first := spec.Copy()
	for _, name := range seeing() {
		delete(first.Programs, name)
	}
	loaded, err := ebpf.NewCollection(first)
	if err != nil {
		return nil, fmt.Errorf("load socket map programs: %w", err)
	}
	defer loaded.Close()
	g = &generation{dir: dir, maps: map[string]*ebpf.Map{}, links: map[string]link.Link{}, iters: map[string]*link.Iter{}}
	for _, name := range mapNames() {
		if g.maps[name] = loaded.DetachMap(name); g.maps[name] == nil {
			delete(g.maps, name)
			return nil, errors.Join(fmt.Errorf("the object has no map %s", name), g.close())
		}
	}
	if err := errors.Join(except(g.maps[exceptMap], excepted), g.see(spec), g.attach(loaded)); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}
