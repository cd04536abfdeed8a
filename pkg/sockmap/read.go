package sockmap

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"fairlead.io/fairlead/pkg/bpf"
)

// View is what the pins tell, even while no agent runs.
type View struct {
	Pinned bool // there are any
	On     bool // connections may bypass TCP
	Held   bool // an operator makes them use TCP all the same
	Pairs  []Pair
	Pods   map[uint64]string // the pods that may take part, by the cookie of their network namespace
}

// Read returns what all versions of the programs know about connections. It changes nothing.
func Read(bpffs string) (v View, err error) {
	dirs, err := generations(Dir(bpffs), false)
	if err != nil {
		return v, err
	}
	if v.Held, err = isHeld(bpffs); err != nil {
		return v, err
	}
	for _, dir := range dirs {
		if err := v.add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
			return v, fmt.Errorf("read pins in %s: %w", dir, err)
		}
	}
	return v, nil
}

func (v *View) add(dir string) error {
	g := &generation{dir: dir, maps: map[string]*ebpf.Map{}}
	defer g.close()
	for _, name := range []string{controlMap, pairsMap, rulesMap} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			return err
		}
		g.maps[name] = m
	}
	on, err := g.control(bpf.SockmapControlCONTROL_ON)
	if err != nil {
		return err
	}
	v.Pinned, v.On = true, v.On || on != 0
	if !g.isReadable() {
		return nil
	}
	pairs, err := g.pairs()
	if err != nil {
		return err
	}
	rules, err := g.rules()
	if err != nil {
		return err
	}
	if v.Pods == nil {
		v.Pods = map[uint64]string{}
	}
	for place, r := range rules {
		v.Pods[place.Netns] = r.Pod
	}
	v.Pairs = append(v.Pairs, pairs...)
	return nil
}

// isReadable reports whether the rows have the layout of this version. Nothing is shown of other
// versions, which only wait for their sockets to leave.
func (g *generation) isReadable() bool {
	pairs, rules := g.maps[pairsMap], g.maps[rulesMap]
	return pairs.KeySize() == uint32(unsafe.Sizeof(uint64(0))) && pairs.ValueSize() == uint32(unsafe.Sizeof(bpf.SockmapPair{})) &&
		rules.KeySize() == uint32(unsafe.Sizeof(bpf.SockmapShortKey{})) && rules.ValueSize() == uint32(unsafe.Sizeof(bpf.SockmapShortRules{}))
}

// Attachment is a program that is at work.
type Attachment struct {
	Version string // of the programs, as its pins are named
	Name    string // of the program
	Program uint32 // its number
}

// Attachments returns what is attached, of all versions of the programs.
func Attachments(bpffs string) (list []Attachment, err error) {
	dirs, err := generations(Dir(bpffs), false)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, dir := range dirs {
		of, err := attachmentsIn(dir)
		if !errors.Is(err, fs.ErrNotExist) { // else it has gone meanwhile
			errs = append(errs, err)
		}
		list = append(list, of...)
	}
	return list, errors.Join(errs...)
}

func attachmentsIn(dir string) (list []Attachment, err error) {
	g, err := open(dir)
	if err != nil {
		return nil, err
	}
	defer g.close()
	version := filepath.Base(dir)
	links := maps.Clone(g.links)
	for name, iter := range g.iters {
		links[name] = iter
	}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		info, err := links[name].Info()
		if err != nil {
			return list, fmt.Errorf("inspect link %s of %s: %w", name, version, err)
		}
		list = append(list, Attachment{version, name, uint32(info.Program)})
	}
	// What the messages of sockets meet is attached to their map, and no link.
	found, err := link.QueryPrograms(link.QueryOptions{Target: g.maps[socksMap].FD(), Attach: ebpf.AttachSkMsgVerdict})
	if err != nil {
		return list, fmt.Errorf("ask what is attached to %s of %s: %w", socksMap, version, err)
	}
	for _, p := range found.Programs {
		list = append(list, Attachment{version, bpf.SockmapProgSockmapMessage, uint32(p.ID)})
	}
	return list, nil
}

// State is the switches of the programs, and how many sockets are in the maps of all versions.
type State struct {
	On      bool `json:"on"`
	Held    bool `json:"held"`    // an operator has switched acceleration off
	Sockets int  `json:"sockets"` // in the map
}

// State returns the current state.
func (s *Sockmap) State() (state State, err error) {
	s.mu.Lock()
	on, err := s.now.control(bpf.SockmapControlCONTROL_ON)
	held, failed := s.now.control(bpf.SockmapControlCONTROL_HELD)
	s.mu.Unlock()
	if err := errors.Join(err, failed); err != nil {
		return state, err
	}
	state.On, state.Held = on != 0, held != 0
	state.Sockets, err = s.Sockets()
	return state, err
}
