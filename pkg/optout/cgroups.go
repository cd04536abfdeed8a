package optout

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

const (
	maxDepth = 3    // of the kubelet's directory below the root
	maxDirs  = 4096 // directories that one search reads
)

// Cgroups finds the cgroups of pods by name, below the cgroup2 directory to which programs are
// attached. It knows the names that a kubelet uses with either cgroup driver. Use NewCgroups; the
// zero value is not usable.
type Cgroups struct {
	root    string
	asked   bool     // Find was called since Refresh
	parents []string // directories that contain pods
}

// NewCgroups returns a Cgroups for the tree below root.
func NewCgroups(root string) *Cgroups { return &Cgroups{root: root} }

// Dirs returns the directories in which pods come and go, none before Find is called.
func (c *Cgroups) Dirs() []string {
	if !c.asked {
		return nil
	}
	if len(c.parents) == 0 {
		return []string{c.root}
	}
	return c.parents
}

// Refresh makes the next Find search for the kubelet's directories again.
func (c *Cgroups) Refresh() { c.asked = false }

// locate searches for the kubelet's directories unless they are known and still exist.
func (c *Cgroups) locate() {
	if c.asked {
		return
	}
	c.asked = true
	// The directories of a kubelet come and go together, its top directory first and last.
	if len(c.parents) > 0 && isDir(c.parents[0]) {
		return
	}
	search := search{left: maxDirs}
	search.below(c.root, maxDepth)
	c.parents = search.found
}

// search is one search for the directories of kubelets.
type search struct {
	left  int // directories that may still be read
	found []string
}

func (s *search) below(dir string, depth int) {
	for _, name := range s.children(dir) {
		path := filepath.Join(dir, name)
		switch {
		case name == "kubepods":
			s.take(path, "burstable", "besteffort")
		case name == "kubepods.slice" || strings.HasSuffix(name, "-kubepods.slice"):
			prefix := strings.TrimSuffix(name, ".slice")
			s.take(path, prefix+"-burstable.slice", prefix+"-besteffort.slice")
		case depth > 1 && !strings.HasSuffix(name, ".service") && name != "user.slice":
			s.below(path, depth-1)
		}
	}
}

func (s *search) children(dir string) []string {
	file, err := os.Open(dir)
	if err != nil {
		return nil // removed meanwhile
	}
	defer file.Close()
	var names []string
	for s.left > 0 {
		entries, err := file.ReadDir(min(s.left, 256))
		for _, entry := range entries {
			if entry.IsDir() {
				names = append(names, entry.Name())
				s.left--
			}
		}
		if err != nil || errors.Is(err, io.EOF) {
			break
		}
	}
	return names
}

func (s *search) take(dir string, classes ...string) {
	s.found = append(s.found, dir)
	for _, class := range classes {
		s.found = append(s.found, filepath.Join(dir, class))
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// Find returns the key of the pod's cgroup.
func (c *Cgroups) Find(pod *model.Pod) ([]maps.OptoutKey, error) {
	c.locate()
	if len(c.parents) == 0 {
		return nil, fmt.Errorf("%w by cgroup: no kubepods below %s: its kubelet uses cgroup v1, or another part of the tree",
			ErrUnknown, c.root)
	}
	if !plain(pod.LocalUID) {
		return nil, fmt.Errorf("%w by cgroup: %.64q is not a UID", ErrUnknown, pod.LocalUID)
	}
	for _, dir := range c.parents {
		name := "pod" + pod.LocalUID
		if slice, ok := strings.CutSuffix(filepath.Base(dir), ".slice"); ok {
			name = slice + "-pod" + strings.ReplaceAll(pod.LocalUID, "-", "_") + ".slice"
		}
		var info unix.Stat_t
		err := unix.Lstat(filepath.Join(dir, name), &info)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w by cgroup: inspect %s: %w", ErrUnknown, filepath.Join(dir, name), err)
		}
		// Beside cgroup v1, the directory may exist while the processes are elsewhere.
		if len(pod.Addrs) > 0 && !populated(filepath.Join(dir, name)) {
			return nil, fmt.Errorf("%w by cgroup: no process is in %s: its runtime uses cgroup v1", ErrUnknown, filepath.Join(dir, name))
		}
		return []maps.OptoutKey{{Id: info.Ino, Kind: maps.OptoutCgroup}}, nil
	}
	return nil, fmt.Errorf("%w by cgroup: no directory for it in %s", ErrUnknown, c.parents[0])
}

// populated reports whether a process is in the cgroup or below it.
func populated(dir string) bool {
	content, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	return err == nil && slices.Contains(strings.Split(string(content), "\n"), "populated 1")
}

// plain reports whether a UID can be part of a file name.
func plain(uid string) bool {
	return uid != "" && len(uid) <= 128 && !strings.ContainsFunc(uid, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-'
	})
}
