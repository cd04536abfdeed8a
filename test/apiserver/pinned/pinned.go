// Package pinned knows the etcd and the kube-apiserver that tests run against: which versions, where they are kept,
// and how they are built from source. The versions are those of the module in the directory binaries.
package pinned

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// Binary is one program and where it is kept. Its name in the cache tells everything that it was made of.
type Binary struct {
	Name string
	Path string

	version string
	pkg     string
	flags   []string // of the linker
}

// Set is every binary that the rig starts.
type Set struct {
	Etcd      Binary
	APIServer Binary

	dir string // of the module that pins them
}

// Find returns the binaries that the source tree around the working directory pins, whether they are built or not.
func Find() (*Set, error) {
	dir, err := moduleDir()
	if err != nil {
		return nil, err
	}
	gomod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return nil, fmt.Errorf("read pinned versions: %w", err)
	}
	gosum, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		return nil, fmt.Errorf("read pinned hashes: %w", err)
	}
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	etcd, err := versionOf(gomod, "go.etcd.io/etcd/server/v3")
	if err != nil {
		return nil, err
	}
	kubernetes, err := versionOf(gomod, "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(gosum)
	path := func(name, version string) string {
		return filepath.Join(cache, name+"-"+version+"-"+hex.EncodeToString(sum[:])[:12])
	}
	return &Set{
		Etcd: Binary{
			Name: "etcd", Path: path("etcd", etcd), version: etcd, pkg: "go.etcd.io/etcd/server/v3",
		},
		APIServer: Binary{
			Name: "kube-apiserver", Path: path("kube-apiserver", kubernetes), version: kubernetes,
			pkg: "k8s.io/kubernetes/cmd/kube-apiserver", flags: versionFlags(kubernetes),
		},
		dir: dir,
	}, nil
}

// Missing returns the names of the binaries that are not built yet.
func (s *Set) Missing() []string {
	var missing []string
	for _, b := range s.all() {
		if !b.built() {
			missing = append(missing, b.Name)
		}
	}
	return missing
}

// Build builds what is missing and tells log about it. Two builds at once wait for each other, and a binary is either
// whole or not there.
func (s *Set) Build(log io.Writer) error {
	if len(s.Missing()) == 0 {
		return nil
	}
	cache := filepath.Dir(s.Etcd.Path)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return fmt.Errorf("create cache: %w", err)
	}
	unlock, err := lock(filepath.Join(cache, ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	for _, b := range s.all() {
		if b.built() { // perhaps while we waited
			continue
		}
		fmt.Fprintf(log, "building %s %s; without a warm build cache this takes minutes\n", b.Name, b.version)
		if err := b.build(s.dir, log); err != nil {
			return err
		}
	}
	return nil
}

func (s *Set) all() []Binary { return []Binary{s.Etcd, s.APIServer} }

func (b *Binary) built() bool {
	info, err := os.Stat(b.Path)
	return err == nil && info.Mode().IsRegular()
}

func (b *Binary) build(dir string, log io.Writer) error {
	temp, err := os.MkdirTemp(filepath.Dir(b.Path), ".build-*")
	if err != nil {
		return fmt.Errorf("create directory for %s: %w", b.Name, err)
	}
	defer os.RemoveAll(temp)
	out := filepath.Join(temp, b.Name)
	flags := append([]string{"-s", "-w"}, b.flags...)
	// Thousands of packages: whoever works on the machine meanwhile goes first.
	cmd := exec.Command("nice", "go", "build", "-p", "2",
		"-trimpath", "-buildvcs=false", "-ldflags", strings.Join(flags, " "), "-o", out, b.pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w", b.Name, err)
	}
	if err := os.Rename(out, b.Path); err != nil {
		return fmt.Errorf("keep %s: %w", b.Name, err)
	}
	return nil
}

// versionFlags sets what a release's own build sets: clients and the server's version gates look at it.
func versionFlags(version string) []string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	var flags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags, "-X "+pkg+".gitVersion="+version, "-X "+pkg+".gitMajor="+parts[0], "-X "+pkg+".gitMinor="+parts[1])
	}
	return flags
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

func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache: %w", err)
	}
	return filepath.Join(base, "fairlead", "bin"), nil
}

func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { file.Close() }, nil
}
