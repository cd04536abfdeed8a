// Package pinned knows the programs of Kubernetes that tests run: which versions, where they are kept, and how they are
// built from source. The versions are those of the module in the directory binaries.
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
)

// Binary is one program and where it is kept. Its name in the cache tells everything that it was made of.
type Binary struct {
	Name    string
	Version string
	Path    string

	pkg  string
	test bool // the program is the package's test
}

// Set is the programs that somebody wants.
type Set struct {
	Etcd      Binary // wanted or not, as is the next
	APIServer Binary

	wanted  []Binary
	dir     string // of the module that pins them
	cache   string
	version string // of Kubernetes
}

// Find returns the named programs of Names that the source tree around the working directory pins, whether they are
// built or not. With no name it is the two that a test of the API server starts.
func Find(names ...string) (*Set, error) {
	dir, err := moduleDir()
	if err != nil {
		return nil, err
	}
	gomod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return nil, fmt.Errorf("read pinned versions: %w", err)
	}
	key, err := sourceKey(os.DirFS(dir))
	if err != nil {
		return nil, err
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find cache: %w", err)
	}
	s := &Set{dir: dir, cache: filepath.Join(base, "fairlead", "bin")}
	if s.version, err = versionOf(gomod, "k8s.io/kubernetes"); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		names = []string{"etcd", "kube-apiserver"}
	}
	for _, p := range programs() {
		b := Binary{Name: p.name, pkg: p.pkg, test: p.test}
		if b.Version, err = versionOf(gomod, p.module); err != nil {
			return nil, err
		}
		b.Path = filepath.Join(s.cache, b.Name+"-"+b.Version+"-"+key)
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

// sourceKey names what programs are made of: the modules by their hashes, and the few sources of our own.
func sourceKey(module fs.FS) (string, error) {
	sources, err := fs.Glob(module, "*/*.go")
	if err != nil {
		return "", fmt.Errorf("find sources of programs: %w", err)
	}
	sum := sha256.New()
	for _, name := range append([]string{"go.sum"}, sources...) {
		content, err := fs.ReadFile(module, name)
		if err != nil {
			return "", fmt.Errorf("read sources of programs: %w", err)
		}
		fmt.Fprintf(sum, "%s %d\n", name, len(content))
		sum.Write(content)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12], nil
}

func versionOf(gomod []byte, module string) (string, error) {
	line := regexp.MustCompile(`(?m)^\s*(?:require\s+)?` + regexp.QuoteMeta(module) + `\s+(v\d+\.\d+\S*)`)
	found := line.FindSubmatch(gomod)
	if found == nil {
		return "", fmt.Errorf("find version of %s: it is not required", module)
	}
	return string(found[1]), nil
}

// moduleDir finds the pinning module from wherever in the tree a test runs.
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
