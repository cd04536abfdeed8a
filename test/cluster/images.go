package main

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"fairlead.io/fairlead/test/cluster/image"
)

// imagesFormat must change whenever package image writes something else from the same programs.
const imagesFormat = "11"

// frontSource is the source of the program that stands before agnhost.
//
//go:embed agnhost/main.go sctp/sctp.go
var frontSource embed.FS

// coreDNSImage returns the name of the DNS server's image.
func (c *Cluster) coreDNSImage() string {
	b, err := c.programs.Binary("coredns")
	if err != nil {
		return "coredns"
	}
	return "registry.k8s.io/coredns/coredns:" + b.Version
}

// imagesPath returns the path of the archive of the cluster's images. Its name depends on
// everything that the archive is made from. The names of the specs' images follow from the module
// that agnhost comes from.
func (c *Cluster) imagesPath() (string, error) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("find out the distribution: %w", err)
	}
	sum := sha256.New()
	for _, part := range []string{imagesFormat, string(release), c.program("agnhost"), c.program("coredns"), c.program("regression-issue-74839")} {
		fmt.Fprintln(sum, part)
	}
	for _, name := range []string{"agnhost/main.go", "sctp/sctp.go"} {
		source, err := frontSource.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("read the source of the program before agnhost: %w", err)
		}
		sum.Write(source)
	}
	name := "cluster-" + c.programs.KubernetesVersion() + "-" + hex.EncodeToString(sum.Sum(nil))[:12] + ".tar"
	return filepath.Join(filepath.Dir(filepath.Dir(c.dir)), "images", name), nil
}

// buildImages writes the archive of the cluster's images unless it exists, and returns its path.
func (c *Cluster) buildImages(log io.Writer) (string, error) {
	path, err := c.imagesPath()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("build images: %w", err)
	}
	specs, err := c.programs.Images(log)
	if err != nil {
		return "", fmt.Errorf("build images: %w", err)
	}
	work, err := os.MkdirTemp(filepath.Dir(path), ".front-*")
	if err != nil {
		return "", fmt.Errorf("build images: %w", err)
	}
	defer os.RemoveAll(work)
	front := filepath.Join(work, "agnhost")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", front, "fairlead.io/fairlead/test/cluster/agnhost")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program before agnhost: %w\n%s", err, out)
	}
	return path, image.BuildAll(path, image.Programs{
		Agnhost: c.program("agnhost"), Front: front, CoreDNS: c.program("coredns"), Regression: c.program("regression-issue-74839"),
		CoreDNSImage: c.coreDNSImage(), Specs: specs,
	})
}

// importImages imports image archives on a node, except those imported in an earlier run.
func (c *Cluster) importImages(name string, archives []string) error {
	where, err := c.node(name)
	if err != nil {
		return err
	}
	for _, archive := range archives {
		path, err := filepath.Abs(archive)
		if err != nil {
			return fmt.Errorf("import images: %w", err)
		}
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("import images: %w", err)
		}
		// The mark lies in the runtime's directory, so it is deleted along with the images.
		mark := c.path(name, "containerd", "imported-"+strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", "-"))
		state := fmt.Sprintf("%d %d\n", info.Size(), info.ModTime().UnixNano())
		if have, err := os.ReadFile(mark); err == nil && string(have) == state {
			continue
		}
		if _, err := output(where, ctr("images", "import", path), nil); err != nil {
			return fmt.Errorf("import images on %s: %w", name, err)
		}
		if err := os.WriteFile(mark, []byte(state), 0o644); err != nil {
			return fmt.Errorf("import images: %w", err)
		}
	}
	return nil
}

// importEverywhere imports image archives on every node.
func (c *Cluster) importEverywhere(archives []string) error {
	var imports []func() error
	for _, name := range c.nodeNames() {
		imports = append(imports, func() error { return c.importImages(name, archives) })
	}
	return together(imports...)
}
