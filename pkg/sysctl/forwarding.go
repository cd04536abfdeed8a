package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Setting is a kernel setting that must be on for the kernel to forward packets for pods.
type Setting struct {
	Name string // in sysctl's form
	file string // below /proc/sys
}

func Forwarding() []Setting {
	return []Setting{
		{"net.ipv4.ip_forward", "net/ipv4/ip_forward"}, {"net.ipv6.conf.all.forwarding", "net/ipv6/conf/all/forwarding"},
	}
}

// IsOff reports whether a setting below root exists and is off. A kernel without IPv6 has no
// settings of it.
func (s Setting) IsOff(root string) (bool, error) {
	value, err := readSetting(filepath.Join(root, s.file))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read setting %s: %w", s.Name, err)
	}
	return value == "0", nil
}

// Change is a kernel setting, and whether it was changed.
type Change struct {
	Setting string
	Changed bool
}

// EnableForwarding makes the kernel whose settings are below root forward packets, and saves the
// former values in dir. It keeps devices accepting router advertisements, because a kernel that
// forwards otherwise ignores them and would lose its routes.
func EnableForwarding(root, dir string) ([]Change, error) {
	var changes []Change
	for _, s := range Forwarding() {
		off, err := s.IsOff(root)
		if err != nil {
			return changes, err
		}
		if off {
			err = saveForwarding(root, dir)
		}
		if off && err == nil && strings.Contains(s.file, "ipv6") {
			err = acceptAdvertisements(root)
		}
		if off && err == nil {
			err = os.WriteFile(filepath.Join(root, s.file), []byte("1"), 0)
		}
		if err != nil {
			return changes, fmt.Errorf("set %s: %w", s.Name, err)
		}
		changes = append(changes, Change{s.Name + "=1", off})
	}
	return changes, nil
}

// acceptAdvertisements makes every device that accepts router advertisements accept them while
// forwarding too.
func acceptAdvertisements(root string) error {
	files, err := filepath.Glob(filepath.Join(root, "net/ipv6/conf/*/accept_ra"))
	if err != nil {
		return err
	}
	for _, file := range files {
		was, err := readSetting(file)
		if err == nil && advertised(was) != was {
			err = os.WriteFile(file, []byte(advertised(was)), 0)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the device is gone
			return err
		}
	}
	return nil
}

// advertised returns the value of accept_ra with which a device that forwards behaves as before.
func advertised(was string) string {
	if was == "1" {
		return "2"
	}
	return was
}
