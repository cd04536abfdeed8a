// Package debian provides the kernels that Debian builds for virtual machines: it defines which
// packages are pinned, fetches them without touching the machine's package state, and keeps them in
// a cache.
package debian

import (
	"bufio"
	_ "embed"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// pinned is the only place that defines which kernels there are.
//
//go:embed pins.txt
var pinned string

const pinsHeader = `# The kernels of test-kernels: Debian's, for virtual machines, one package a line. The first column is what a kernel is
# called here; "serves" or "refuses" is what the agent has to do on it. "make pin-kernels" replaces the packages of every
# kernel by the newest of its suite.
`

// Pin is a kernel and the packages that it consists of.
type Pin struct {
	Kernel   string // its name here, such as 6.1
	Serves   bool   // the agent must work on it; otherwise the agent must refuse it
	Suite    string // Debian's suite, such as bookworm-security
	Packages []Package
}

// Package is a package of one exact version.
type Package struct {
	Name, Version, SHA256 string
}

// Pins returns all pinned kernels, in the order of the file.
func Pins() ([]Pin, error) { return parsePins(pinned) }

// Select returns the pins of the named kernels, or all if no name is given.
func Select(pins []Pin, kernels []string) ([]Pin, error) {
	if len(kernels) == 0 {
		return pins, nil
	}
	var selected []Pin
	for _, kernel := range kernels {
		at := slices.IndexFunc(pins, func(p Pin) bool { return p.Kernel == kernel })
		if at < 0 {
			var known []string
			for _, p := range pins {
				known = append(known, p.Kernel)
			}
			return nil, fmt.Errorf("find kernel %s: not pinned; there are %s", kernel, strings.Join(known, ", "))
		}
		selected = append(selected, pins[at])
	}
	return selected, nil
}

func parsePins(text string) ([]Pin, error) {
	var pins []Pin
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 6 {
			return nil, fmt.Errorf("read pins: line %d: %d fields, want 6", n, len(fields))
		}
		pin := Pin{Kernel: fields[0], Serves: fields[1] == "serves", Suite: fields[2]}
		if !pin.Serves && fields[1] != "refuses" {
			return nil, fmt.Errorf("read pins: line %d: %q is neither serves nor refuses", n, fields[1])
		}
		pkg := Package{Name: fields[3], Version: fields[4], SHA256: fields[5]}
		at := slices.IndexFunc(pins, func(p Pin) bool { return p.Kernel == pin.Kernel })
		if at < 0 {
			at = len(pins)
			pins = append(pins, pin)
		}
		if p := pins[at]; p.Suite != pin.Suite || p.Serves != pin.Serves || len(p.Packages) > 0 && p.Version() != pkg.Version {
			return nil, fmt.Errorf("read pins: line %d: differs from the other packages of kernel %s", n, pin.Kernel)
		}
		pins[at].Packages = append(pins[at].Packages, pkg)
	}
	return pins, lines.Err()
}

// WritePins writes the pins in the file's format.
func WritePins(w io.Writer, pins []Pin) error {
	if _, err := io.WriteString(w, pinsHeader); err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, pin := range pins {
		expect := "refuses"
		if pin.Serves {
			expect = "serves"
		}
		for _, p := range pin.Packages {
			fmt.Fprintln(table, strings.Join([]string{pin.Kernel, expect, pin.Suite, p.Name, p.Version, p.SHA256}, "\t"))
		}
	}
	return table.Flush()
}

// Version returns the version of all packages of the kernel.
func (p Pin) Version() string { return p.Packages[0].Version }

// role returns a package's role for its kernel, such as linux-image- or linux-modules-: the part of
// its name that does not change from version to version.
func (p Pin) role(pkg Package) (string, error) {
	role, _, ok := strings.Cut(pkg.Name, p.Kernel)
	if !ok {
		return "", fmt.Errorf("read pins: package %s does not have %s in its name", pkg.Name, p.Kernel)
	}
	return role, nil
}
