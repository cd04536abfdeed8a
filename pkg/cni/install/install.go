// Package install gives a container runtime the two files that it needs for fairlead-cni: the
// plugin, and the configuration of the network. It changes each atomically, since runtimes may read
// them at any moment, and removes only what fairlead installed.
package install

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// PluginName is the name under which a runtime looks for the plugin.
const PluginName = "fairlead-cni"

// The directories where runtimes look by default.
const (
	PluginDir        = "/opt/cni/bin"
	ConfigurationDir = "/etc/cni/net.d"
)

// pluginPath is the main package in the build information of the plugin's binary.
const pluginPath = "fairlead.io/fairlead/cmd/fairlead-cni"

// Placed is a file, and whether it had to be written.
type Placed struct {
	Path    string `json:"path"`
	Changed bool   `json:"changed"`
}

// Plugin copies the plugin at from into a directory.
func Plugin(from, dir string) (Placed, error) {
	if err := isPlugin(from); errors.Is(err, fs.ErrNotExist) {
		return Placed{}, fmt.Errorf("%w: build it with \"make build\", or name another with --from", err)
	} else if err != nil {
		return Placed{}, err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return Placed{}, fmt.Errorf("read the plugin: %w", err)
	}
	return place(filepath.Join(dir, PluginName), content, 0o755)
}

// RemovePlugin removes the plugin from a directory, and reports whether it was there. It leaves
// another program of that name.
func RemovePlugin(dir string) (bool, error) {
	path := filepath.Join(dir, PluginName)
	return take(path, func() error { return isPlugin(path) })
}

// isPlugin returns an error unless the file is the plugin, in any version.
func isPlugin(path string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the plugin %s: %w", path, err)
	}
	if info.Path != pluginPath {
		return fmt.Errorf("%s is the program %s and not %s", path, info.Path, pluginPath)
	}
	return nil
}

// network is a network configuration as a runtime reads it.
type network struct {
	Version  string   `json:"cniVersion"`
	Versions []string `json:"cniVersions"`
	Name     string   `json:"name"`
	Plugins  []plugin `json:"plugins"`
}

type plugin struct {
	Type         string          `json:"type"`
	Socket       string          `json:"socket,omitempty"`
	Capabilities map[string]bool `json:"capabilities,omitempty"`
}

// Configuration writes the configuration of the network that the agent at socket serves. From then
// on the runtime starts pods, so it has to be the last step.
func Configuration(dir, name, socket string) (Placed, error) {
	content, err := json.MarshalIndent(network{
		// A runtime that knows cniVersions takes the newest that it supports.
		Version: "1.0.0", Versions: []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"},
		Name: "fairlead",
		Plugins: []plugin{{
			Type: PluginName, Socket: socket,
			Capabilities: map[string]bool{"portMappings": true, "bandwidth": true, "mac": true, "ips": true},
		}},
	}, "", "  ")
	if err != nil {
		return Placed{}, fmt.Errorf("write the configuration: %w", err)
	}
	return place(filepath.Join(dir, name), append(content, '\n'), 0o600)
}

// RemoveConfiguration removes the configuration of that name, and reports whether it was there. It
// leaves a configuration that is not for the agent at socket.
func RemoveConfiguration(dir, name, socket string) (bool, error) {
	path := filepath.Join(dir, name)
	return take(path, func() error {
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the configuration: %w", err)
		}
		var found network
		if err := json.Unmarshal(content, &found); err != nil {
			return fmt.Errorf("read the configuration %s: %w", path, err)
		}
		for _, p := range found.Plugins {
			if p.Type == PluginName && p.Socket == socket {
				return nil
			}
		}
		return fmt.Errorf("the configuration %s is not for the agent at %s", path, socket)
	})
}

// place writes a file, unless it already has the content and mode.
func place(path string, content []byte, mode fs.FileMode) (Placed, error) {
	placed := Placed{Path: path}
	err := locked(filepath.Dir(path), func(dir *os.File) error {
		info, err := os.Lstat(path)
		if err == nil && info.Mode() == mode { // a regular file, not a link to one
			if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, content) {
				return nil
			}
		}
		placed.Changed = true
		return replace(dir, path, content, mode)
	})
	return placed, err
}

// replace writes a hidden file and renames it. The file is closed by then, since a program that is
// open for writing cannot be executed.
func replace(dir *os.File, path string, content []byte, mode fs.FileMode) error {
	staged := stagedName(path)
	if err := os.Remove(staged); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by an interrupted replace
		return err
	}
	file, err := os.OpenFile(staged, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Chmod(mode) // whatever the umask is
	}
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(staged, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(staged))
	}
	return dir.Sync()
}

// stagedName returns a name that is hidden and has no extension that a runtime reads.
func stagedName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
}

// take removes a file if it is ours. It is no error if there is none.
func take(path string, ours func() error) (taken bool, err error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	err = locked(filepath.Dir(path), func(dir *os.File) error {
		if err := ours(); err != nil {
			return fmt.Errorf("%w; leaving it in place", err)
		}
		if err := os.Remove(path); err != nil {
			return err
		}
		taken = true
		return dir.Sync()
	})
	return taken, err
}
