// Package pinned knows the Kubernetes programs that tests run: their versions, where they are kept,
// and how they are built from source. The versions are those of the module in the directory
// binaries. Where KUBERNETES_MINOR names an older minor, Kubernetes' own programs and the runner of
// its specs have that minor's version, from a second module file beside go.mod.
package pinned

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Binary is one program and where it is kept. Its name in the cache depends on everything it was
// made of.
type Binary struct {
	Name    string
	Version string
	Path    string

	pkg     string
	test    bool   // the program is the package's test
	modfile string // the module file that pins it
}

// Set is the set of programs that a caller wants.
type Set struct {
	Etcd      Binary // set even if not wanted, as is APIServer
	APIServer Binary

	wanted  []Binary
	dir     string // directory of the module that pins them
	cache   string
	version string // of Kubernetes
}

// Find returns the named programs, at the versions that the source tree around the working
// directory pins, whether they are built or not. Names lists the possible names. Without names it
// returns the two programs that an API server test starts.
func Find(names ...string) (*Set, error) {
	dir, err := moduleDir()
	if err != nil {
		return nil, err
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find cache: %w", err)
	}
	s := &Set{dir: dir, cache: filepath.Join(base, "fairlead", "bin")}
	ours, err := readModule(os.DirFS(dir), "go.mod")
	if err != nil {
		return nil, err
	}
	theirs := ours
	if minor := os.Getenv("KUBERNETES_MINOR"); minor != "" {
		if theirs, err = readModule(os.DirFS(dir), "kubernetes-"+minor+".mod"); err != nil {
			return nil, fmt.Errorf("find Kubernetes %s, which KUBERNETES_MINOR asks for: %w", minor, err)
		}
	}
	if s.version, err = versionOf(theirs.requirements, kubernetes); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		names = []string{"etcd", "kube-apiserver"}
	}
	for _, p := range programs() {
		from := ours
		if p.minor {
			from = theirs
		}
		b := Binary{Name: p.name, pkg: p.pkg, test: p.test, modfile: from.file}
		if b.Version, err = versionOf(from.requirements, p.module); err != nil {
			return nil, err
		}
		b.Path = filepath.Join(s.cache, b.Name+"-"+b.Version+"-"+from.key)
		switch b.Name {
		case "etcd":
			s.Etcd = b
		case "kube-apiserver":
			s.APIServer = b
		}
		if slices.Contains(names, b.Name) {
			s.wanted = append(s.wanted, b)
		}
	}
	if len(s.wanted) != len(names) {
		return nil, fmt.Errorf("find programs %q: there are %q", names, Names())
	}
	return s, nil
}

// Binary returns a program of the set by its name.
func (s *Set) Binary(name string) (Binary, error) {
	for _, b := range s.wanted {
		if b.Name == name {
			return b, nil
		}
	}
	return Binary{}, fmt.Errorf("find program %s: it is not in the set", name)
}

// All returns the programs of the set.
func (s *Set) All() []Binary { return s.wanted }

// KubernetesVersion returns the version of Kubernetes, such as v1.36.3.
func (s *Set) KubernetesVersion() string { return s.version }

// Missing returns the names of the programs that are not built yet.
func (s *Set) Missing() []string {
	var missing []string
	for _, b := range s.wanted {
		if !b.built() {
			missing = append(missing, b.Name)
		}
	}
	return missing
}

func (b *Binary) built() bool {
	info, err := os.Stat(b.Path)
	return err == nil && info.Mode().IsRegular()
}

// module is a module file that pins programs.
type module struct {
	file         string // its name
	requirements []byte
	// Identifies what the programs are made of: the modules by their hashes, and the few sources of
	// our own.
	key string
}

// readModule reads a module file and the files beside it that matter.
func readModule(dir fs.FS, file string) (m module, err error) {
	m.file = file
	if m.requirements, err = fs.ReadFile(dir, file); err != nil {
		return module{}, fmt.Errorf("read pinned versions: %w", err)
	}
	sources, err := fs.Glob(dir, "*/*.go")
	if err != nil {
		return module{}, fmt.Errorf("find sources of programs: %w", err)
	}
	sum := sha256.New()
	for _, name := range append([]string{strings.TrimSuffix(file, "mod") + "sum"}, sources...) {
		content, err := fs.ReadFile(dir, name)
		if err != nil {
			return module{}, fmt.Errorf("read sources of programs: %w", err)
		}
		fmt.Fprintf(sum, "%s %d\n", name, len(content))
		sum.Write(content)
	}
	m.key = hex.EncodeToString(sum.Sum(nil))[:12]
	return m, nil
}

func versionOf(gomod []byte, module string) (string, error) {
	line := regexp.MustCompile(`(?m)^\s*(?:require\s+)?` + regexp.QuoteMeta(module) + `\s+(v\d+\.\d+\S*)`)
	found := line.FindSubmatch(gomod)
	if found == nil {
		return "", fmt.Errorf("find version of %s: it is not required", module)
	}
	return string(found[1]), nil
}

// moduleDir finds the pinning module from the directory in the tree in which the test runs.
func moduleDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find source tree: %w", err)
	}
	for {
		gomod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(gomod, []byte("module fairlead.io/fairlead\n")) {
			return filepath.Join(dir, "test", "apiserver", "binaries"), nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find source tree: the working directory is not inside it")
		}
		dir = parent
	}
}
