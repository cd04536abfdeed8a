package main

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"
)

// names are the programs of the image; the version of the first is the image's.
func names() []string { return []string{"fairlead", "fairlead-cni"} }

// buildFlags are those of a release: they keep local paths and data for debuggers out of the
// programs.
func buildFlags() []string { return []string{"-trimpath", "-buildvcs=auto", "-ldflags=-w"} }

// build builds the programs for an architecture as a release has them.
func build(ctx context.Context, dir, arch string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	args := slices.Concat([]string{"build"}, buildFlags(), []string{"-o", dir + string(filepath.Separator), "./cmd/..."})
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs for %s: %w\n%s", arch, err, out)
	}
	return nil
}

// program is a program of the image.
type program struct {
	name, path string
	size       int64
	sum        string // SHA-256
	info       *debug.BuildInfo
}

func inspectAll(dir, arch string) ([]*program, error) {
	var all []*program
	for _, name := range names() {
		p, err := inspect(name, filepath.Join(dir, name), arch)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// inspect reads a program. It refuses a program that needs a loader or libraries, which the image
// does not have, and one for another architecture.
func inspect(name, path, arch string) (*program, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open a program: %w", err)
	}
	defer file.Close()
	binary, err := elf.NewFile(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	for _, part := range binary.Progs {
		if part.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("%s is not linked statically: build it with CGO_ENABLED=0", path)
		}
	}
	info, err := buildinfo.Read(file)
	if err != nil {
		return nil, fmt.Errorf("read the build info of %s: %w", path, err)
	}
	p := &program{name: name, path: path, info: info}
	if is := p.setting("GOARCH"); is != arch {
		return nil, fmt.Errorf("%s is for %s, not for %s", path, is, arch)
	}
	sum := sha256.New()
	if p.size, err = io.Copy(sum, io.NewSectionReader(file, 0, 1<<62)); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	p.sum = hex.EncodeToString(sum.Sum(nil))
	return p, nil
}

// setting returns a build setting of the program, or "" if it is not recorded.
func (p *program) setting(key string) string {
	for _, s := range p.info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// version returns the version of the module; a tree outside version control has none.
func (p *program) version() string {
	if v := p.info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	return "v0.0.0"
}

// time returns the time of the commit, or a fixed one if there is none: the time of the build would
// differ each time.
func (p *program) time() time.Time {
	at, err := time.Parse(time.RFC3339, p.setting("vcs.time"))
	if err != nil {
		return time.Unix(0, 0)
	}
	return at
}
