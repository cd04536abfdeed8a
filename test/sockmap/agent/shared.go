package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

// pins is a bpf filesystem in which programs for some limits are pinned. Verifying the programs takes most of a test's
// time, on an emulated machine nearly all of it. So a test passes its pins on to the next one with the same limits,
// whose agent adopts them, with every map as it was created.
type pins struct {
	bpffs   string
	unmount func() error
	limits  string   // as loaded
	files   []string // what is pinned
	rows    map[string][]row
}

// row is a row of a map as it was created.
type row struct{ key, value []byte }

// shared holds pins that no test uses, the most recently used last. Their programs stay attached, but are switched off
// and let nobody take part.
var shared struct {
	mu   sync.Mutex
	idle []*pins
}

// mostIdle is how many are held: most tests use one of two kinds of limits.
const mostIdle = 2

// Sharing is the tests of a package, which share loaded programs: see rig.Main.
type Sharing struct{ Tests interface{ Run() int } }

// Run runs the tests, and removes what they shared.
func (s Sharing) Run() int {
	code := s.Tests.Run()
	for _, p := range shared.idle {
		if err := p.unmount(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	shared.idle = nil
	return code
}

// take returns pins that another test left, or an empty filesystem, and takes it back when the test ends.
func take(t rig.T, limits sockmap.Limits) *pins {
	t.Helper()
	wanted := fmt.Sprintf("%+v", limits)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for i, p := range slices.Backward(shared.idle) {
		if p.limits == wanted {
			shared.idle = slices.Delete(shared.idle, i, i+1)
			return p
		}
	}
	dir, unmount, err := rig.MountBPFFS()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return &pins{bpffs: dir, unmount: unmount, limits: wanted}
}

// leave keeps pins for other tests if they are as the test found them once their maps are cleaned. A test that failed,
// or that has replaced or changed what is pinned, leaves none.
func (p *pins) leave(t *Agent) {
	if !t.T.Failed() && p.clean() == nil {
		shared.mu.Lock()
		defer shared.mu.Unlock()
		if shared.idle = append(shared.idle, p); len(shared.idle) <= mostIdle {
			return
		}
		p = shared.idle[0]
		shared.idle = slices.Delete(shared.idle, 0, 1)
	}
	t.Must(p.unmount())
}

// note remembers what is pinned, and the rows of every map, before the agent changes any.
func (p *pins) note() (err error) {
	if p.files, err = p.list(); err != nil {
		return err
	}
	p.rows = map[string][]row{}
	return p.eachMap(func(path string, m *ebpf.Map) (err error) {
		p.rows[path], err = rowsOf(m)
		return err
	})
}

// clean restores the maps, or says why it cannot.
func (p *pins) clean() error {
	files, err := p.list()
	if err != nil {
		return err
	}
	if !slices.Equal(files, p.files) {
		return errors.New("other things are pinned")
	}
	return p.eachMap(func(path string, m *ebpf.Map) error { return restore(m, p.rows[path]) })
}

func (p *pins) list() (files []string, err error) {
	err = filepath.WalkDir(p.bpffs, func(path string, _ fs.DirEntry, err error) error {
		files = append(files, path)
		return err
	})
	return files, err
}

func (p *pins) eachMap(f func(path string, m *ebpf.Map) error) error {
	for _, path := range p.files {
		m, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			continue // a directory, or a link
		}
		err = f(path, m)
		if err = errors.Join(err, m.Close()); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// rowsOf returns the rows of a map that has any of its own: storage goes with its sockets, and whatever is left in a ring
// buffer wakes the next agent for nothing.
func rowsOf(m *ebpf.Map) (rows []row, err error) {
	switch m.Type() {
	case ebpf.Hash, ebpf.LRUHash, ebpf.Array:
		each := m.Iterate()
		for key, value := []byte{}, []byte{}; each.Next(&key, &value); {
			rows = append(rows, row{slices.Clone(key), slices.Clone(value)})
		}
		return rows, each.Err()
	case ebpf.PerCPUArray, ebpf.SockHash, ebpf.SkStorage, ebpf.RingBuf:
		return nil, nil
	default:
		return nil, fmt.Errorf("nobody knows how to clean a map of type %v", m.Type())
	}
}

// restore gives a map these rows, and no others.
func restore(m *ebpf.Map, rows []row) error {
	switch m.Type() {
	case ebpf.SockHash:
		return waitEmpty(m)
	case ebpf.PerCPUArray:
		return zero(m)
	case ebpf.SkStorage, ebpf.RingBuf:
		return nil
	}
	had, err := rowsOf(m)
	if err != nil {
		return err
	}
	for _, r := range had {
		if m.Type() != ebpf.Array {
			if err := m.Delete(r.key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
		}
	}
	for _, r := range rows {
		if err := m.Put(r.key, r.value); err != nil {
			return err
		}
	}
	return nil
}

// waitEmpty waits for the sockets that the test has closed to leave.
func waitEmpty(m *ebpf.Map) error {
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		var key uint64
		if err := m.NextKey(nil, &key); err != nil {
			if errors.Is(err, ebpf.ErrKeyNotExist) {
				return nil
			}
			return err
		}
		if time.Now().After(end) {
			return errors.New("sockets are left")
		}
	}
}

// zero sets all counts of a map to zero.
func zero(m *ebpf.Map) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	zeroes := make([][]byte, cpus)
	for i := range zeroes {
		zeroes[i] = make([]byte, m.ValueSize())
	}
	for n := range m.MaxEntries() {
		if err := m.Put(n, zeroes); err != nil {
			return err
		}
	}
	return nil
}
