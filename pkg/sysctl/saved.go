// Package sysctl changes kernel settings that fairlead needs, and remembers their former values, so that a
// cleanup can restore them.
package sysctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Root is the directory of the kernel's settings.
const Root = "/proc/sys"

// savedFile is the name of the file in the state directory.
const savedFile = "settings.json"

// saved are the kernel settings that "fairlead init" or an agent changed, so that cleanup can
// restore them.
type saved struct {
	Boot  string          `json:"boot"`  // the changes are lost when the kernel restarts
	Files map[string]Edit `json:"files"` // by path below /proc/sys
}

// Edit is the change of one setting.
type Edit struct {
	Was string `json:"was"`
	Is  string `json:"is"`
}

// globals returns the settings that change others when they are set, and are therefore restored
// first.
func globals() []string { return []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} }

// changes returns the settings below root that EnableForwarding changes, and those that the kernel
// changes along with them. It includes settings that keep their value, because restoring the others
// would change them.
func changes(root string) (map[string]Edit, error) {
	all := map[string]Edit{}
	for pattern, becomes := range map[string]func(was string) string{
		"net/ipv4/ip_forward":                constant("1"),
		"net/ipv4/conf/all/accept_redirects": constant("0"),
		"net/ipv4/conf/*/forwarding":         constant("1"),
		"net/ipv6/conf/*/forwarding":         constant("1"),
		"net/ipv6/conf/*/accept_ra":          advertised,
	} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			was, err := readSetting(path)
			if errors.Is(err, fs.ErrNotExist) { // the device is gone
				continue
			}
			if err != nil {
				return nil, err
			}
			file, err := filepath.Rel(root, path)
			if err != nil {
				return nil, err
			}
			all[file] = Edit{was, becomes(was)}
		}
	}
	delete(all, "net/ipv4/conf/all/forwarding") // the same setting as net/ipv4/ip_forward
	return all, nil
}

func constant(value string) func(string) string { return func(string) string { return value } }

func readSetting(path string) (string, error) {
	content, err := os.ReadFile(path)
	return strings.TrimSpace(string(content)), err
}

// saveForwarding saves, in dir, the current values of the settings below root that setForwarding changes.
func saveForwarding(root, dir string) error {
	now, err := changes(root)
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	return Save(root, dir, now)
}

// Save saves settings in dir before they are changed. Values that were saved earlier stay, because
// they are the original ones.
func Save(root, dir string, now map[string]Edit) error {
	noted, err := readSaved(root, dir)
	if err != nil {
		return err
	}
	maps.Copy(now, noted.Files)
	noted.Files = now
	return noted.write(dir)
}

func (noted saved) write(dir string) error {
	content, err := json.MarshalIndent(noted, "", "  ")
	if err != nil {
		return fmt.Errorf("save settings: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("save settings: %w", err)
	}
	staged := filepath.Join(dir, "."+savedFile)
	if err := os.WriteFile(staged, content, 0o600); err != nil {
		return fmt.Errorf("save settings: %w", err)
	}
	if err := os.Rename(staged, filepath.Join(dir, savedFile)); err != nil {
		return fmt.Errorf("save settings: %w", err)
	}
	return nil
}

// readSaved returns the settings that were saved in dir since this kernel started.
func readSaved(root, dir string) (saved, error) {
	boot, err := readSetting(filepath.Join(root, "kernel/random/boot_id"))
	if err != nil {
		return saved{}, fmt.Errorf("read the id of this boot: %w", err)
	}
	path := filepath.Join(dir, savedFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return saved{Boot: boot}, nil
	}
	var noted saved
	if err == nil {
		err = json.Unmarshal(content, &noted)
	}
	if err != nil {
		return saved{}, fmt.Errorf("read saved settings %s: %w", path, err)
	}
	if noted.Boot != boot {
		return saved{Boot: boot}, nil
	}
	for file := range noted.Files {
		if !filepath.IsLocal(file) || !strings.HasPrefix(file, "net/") {
			return saved{}, fmt.Errorf("read saved settings %s: %s is not a network setting",
				path, file)
		}
	}
	return noted, nil
}

// Restore restores the settings below root that are saved in dir, except those that somebody else
// has changed since, and returns those that it changed.
func Restore(root, dir string) (changed []string, err error) {
	noted, err := readSaved(root, dir)
	if err != nil {
		return nil, err
	}
	target := map[string]string{}
	for file, c := range noted.Files {
		now, err := readSetting(filepath.Join(root, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("restore settings: %w", err)
		}
		target[file] = now
		if now == c.Is && now != c.Was {
			target[file] = c.Was
			changed = append(changed, strings.ReplaceAll(file, "/", ".")+"="+c.Was)
		}
	}
	for _, file := range append(globals(), slices.Sorted(maps.Keys(target))...) {
		value, there := target[file]
		if !there {
			continue
		}
		path := filepath.Join(root, file)
		now, err := readSetting(path)
		if err == nil && now != value {
			err = os.WriteFile(path, []byte(value), 0)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("restore setting %s: %w", file, err)
		}
	}
	slices.Sort(changed)
	if err := os.Remove(filepath.Join(dir, savedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return changed, fmt.Errorf("remove saved settings: %w", err)
	}
	return changed, nil
}

// CongestionControl returns the default congestion control of connections.
func CongestionControl(root string) string {
	name, err := readSetting(filepath.Join(root, "net/ipv4/tcp_congestion_control"))
	if err != nil {
		return "unknown"
	}
	return name
}
