package debian

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// GoneError reports that the mirror no longer has a package of this version.
type GoneError struct {
	Package Package
	Suite   string
	Newest  []Package // packages that could be pinned instead; empty if the suite no longer has such a kernel
}

// Error says what is gone, why, and what to do.
func (e *GoneError) Error() string {
	text := fmt.Sprintf("%s has no %s %s: mirrors drop old point releases", e.Suite, e.Package.Name, e.Package.Version)
	if len(e.Newest) == 0 {
		return text + "; the suite has no kernel of that line any more, so pin another suite in test/kernels/debian/pins.txt"
	}
	return fmt.Sprintf("%s; it has %s %s now, which \"make pin-kernels\" pins", text, e.Newest[0].Name, e.Newest[0].Version)
}

// missing returns a *GoneError unless all pinned packages are available.
func (p Pin) missing(available []Package) error {
	for _, pkg := range p.Packages {
		if slices.ContainsFunc(available, func(a Package) bool { return a.Name == pkg.Name && a.Version == pkg.Version }) {
			continue
		}
		newest, err := newestOf(p, available, dpkgLess)
		if err != nil {
			return err
		}
		return &GoneError{Package: pkg, Suite: p.Suite, Newest: newest}
	}
	return nil
}

// Newest returns the pin with the newest packages in its suite.
func Newest(ctx context.Context, pin Pin) (Pin, error) {
	client, err := openApt(ctx, pin.Suite)
	if err != nil {
		return pin, err
	}
	defer client.Close()
	available, err := client.available(ctx)
	if err != nil {
		return pin, err
	}
	newest, err := newestOf(pin, available, dpkgLess)
	if err != nil {
		return pin, err
	}
	if len(newest) == 0 {
		return pin, &GoneError{Package: pin.Packages[0], Suite: pin.Suite}
	}
	pin.Packages = newest
	return pin, nil
}

// newestOf returns the packages to replace the pin's, all of the newest version, or nil if there
// are none.
func newestOf(pin Pin, available []Package, less func(a, b string) (bool, error)) ([]Package, error) {
	var newest []Package
	for i, p := range pin.Packages {
		role, err := pin.role(p)
		if err != nil {
			return nil, err
		}
		var best Package
		for _, a := range available {
			if !fits(a.Name, role, pin.Kernel) || i > 0 && a.Version != newest[0].Version {
				continue
			}
			if newer, err := less(best.Version, a.Version); err != nil {
				return nil, err
			} else if newer {
				best = a
			}
		}
		if best.Name == "" {
			return nil, nil
		}
		newest = append(newest, best)
	}
	return newest, nil
}

// fits reports whether a package has a role for the kernel. Names without an ABI, such as
// linux-image-6.1-cloud-amd64, are those of empty packages.
func fits(name, role, kernel string) bool {
	abi, ok := strings.CutPrefix(name, role+kernel+".")
	if !ok {
		return false
	}
	_, flavour, ok := strings.Cut(abi, "-cloud-")
	return ok && flavour == "amd64"
}

func dpkgLess(a, b string) (bool, error) {
	if a == "" {
		return true, nil
	}
	err := exec.Command("dpkg", "--compare-versions", a, "lt", b).Run()
	if exit, ok := err.(*exec.ExitError); ok && exit.ExitCode() == 1 {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("compare versions: %w", err)
	}
	return true, nil
}
