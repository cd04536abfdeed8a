package debian

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// Kernel is a fetched kernel.
type Kernel struct {
	Pin
	Release string // as in uname -r, such as 6.1.0-50-cloud-amd64
	Image   string // path of the image that a machine boots

	modules string // directory that a running system has below /lib/modules
}

// Cached returns the kernel of the pin if it is in the cache, or else an error that wraps
// fs.ErrNotExist.
func Cached(pin Pin) (*Kernel, error) {
	dir, err := cacheDir(pin)
	if err != nil {
		return nil, err
	}
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	if err != nil {
		return nil, fmt.Errorf("find kernel %s: %w", pin.Kernel, err)
	}
	return &Kernel{
		Pin: pin, Release: string(release), Image: filepath.Join(dir, "vmlinuz"), modules: filepath.Join(dir, "modules"),
	}, nil
}

// Fetch returns the kernel of the pin. If it has to download the kernel, it notes that in log.
func Fetch(ctx context.Context, pin Pin, log io.Writer) (*Kernel, error) {
	kernel, err := Cached(pin)
	if err == nil {
		return kernel, nil
	}
	fmt.Fprintf(log, "fetching kernel %s (%s of %s)\n", pin.Kernel, pin.Version(), pin.Suite)
	if err := fetch(ctx, pin); err != nil {
		return nil, fmt.Errorf("fetch kernel %s: %w", pin.Kernel, err)
	}
	return Cached(pin)
}

func cacheDir(pin Pin) (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache: %w", err)
	}
	return filepath.Join(base, "fairlead", "kernels", pin.Kernel+"_"+pin.Version()), nil
}

// fetch downloads the kernel and makes it appear in the cache as a whole.
func fetch(ctx context.Context, pin Pin) error {
	dir, err := cacheDir(pin)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("create cache: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".fetch-")
	if err != nil {
		return fmt.Errorf("create cache: %w", err)
	}
	defer os.RemoveAll(temp)
	client, err := openApt(ctx, pin.Suite)
	if err != nil {
		return err
	}
	defer client.Close()
	available, err := client.available(ctx)
	if err != nil {
		return err
	}
	if err := pin.missing(available); err != nil {
		return err
	}
	tree := filepath.Join(temp, "tree")
	for _, p := range pin.Packages {
		file, err := client.download(ctx, p, temp)
		if err != nil {
			return err
		}
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", file, tree).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w\n%s", p.Name, err, out)
		}
	}
	kept := filepath.Join(temp, "kept")
	if err := copyNeeded(tree, kept); err != nil {
		return err
	}
	// Another run may have been faster; its result is the same.
	if err := os.Rename(kept, dir); err != nil && !exists(filepath.Join(dir, "release")) {
		return fmt.Errorf("keep kernel: %w", err)
	}
	return nil
}

// copyNeeded copies the files that a machine needs from the unpacked packages. Their location has changed
// over the years.
func copyNeeded(tree, kept string) error {
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return err
	}
	modules, err := one(tree, "lib/modules/*", "usr/lib/modules/*")
	if err != nil {
		return err
	}
	image, err := one(tree, "boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz")
	if err != nil {
		return err
	}
	if err := os.Rename(image, filepath.Join(kept, "vmlinuz")); err != nil {
		return err
	}
	if config, err := one(tree, "boot/config-*"); err == nil {
		if err := os.Rename(config, filepath.Join(modules, "config")); err != nil {
			return err
		}
	}
	if err := os.Rename(modules, filepath.Join(kept, "modules")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(kept, "release"), []byte(filepath.Base(modules)), 0o644)
}

// one returns the only file that matches one of the patterns.
func one(dir string, patterns ...string) (string, error) {
	var found []string
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return "", err
		}
		found = append(found, files...)
	}
	if len(found) != 1 {
		return "", fmt.Errorf("unpack kernel: %d files match %q, want one", len(found), patterns)
	}
	return found[0], nil
}
