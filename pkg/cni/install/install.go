// Package install gives a container runtime the two files by which it finds fairlead-cni: the plugin, and the configuration
// of the network. It changes each in one step, since runtimes read them at any moment, and takes back only what is ours.
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

// PluginName is what the plugin is called where a runtime looks for it.
const PluginName = "fairlead-cni"

// Where runtimes look, unless they are told otherwise.
const (
	PluginDir        = "/opt/cni/bin"
	ConfigurationDir = "/etc/cni/net.d"
)

// pluginPath is what the plugin's binary says of itself.
const pluginPath = "fairlead.io/fairlead/cmd/fairlead-cni"

// Placed is a file and whether it had to be written.
type Placed struct {
	Path    string `json:"path"`
	Changed bool   `json:"changed"`
}

// Plugin copies the plugin at a path into a directory.
func Plugin(from, dir string) (Placed, error) {
	if err := isPlugin(from); errors.Is(err, fs.ErrNotExist) {
		return Placed{}, fmt.Errorf("%w: build it by \"make build\", or name another with --from", err)
	} else if err != nil {
		return Placed{}, err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return Placed{}, fmt.Errorf("read the plugin: %w", err)
	}
	return place(filepath.Join(dir, PluginName), content, 0o755)
}

// RemovePlugin removes the plugin from a directory, and reports whether it was there. Something else of its name stays.
func RemovePlugin(dir string) (bool, error) {
	path := filepath.Join(dir, PluginName)
	return take(path, func() error { return isPlugin(path) })
}

// isPlugin returns why a file is not the plugin, of whatever version.
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

// network is a configuration as a runtime reads it.
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

// Configuration writes the configuration of the network that an agent with this socket serves. From then on the runtime
// starts pods, so it is the last step.
func Configuration(dir, name, socket string) (Placed, error) {
	content, err := json.MarshalIndent(network{
		// A runtime that knows the list takes the newest that it knows itself.
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

// RemoveConfiguration removes the configuration of that name, and reports whether it was there. One that is not of an agent
// with this socket stays.
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
		return fmt.Errorf("the configuration %s is not of the agent at %s", path, socket)
	})
}

// place gives a file its content, unless it has it.
func place(path string, content []byte, mode fs.FileMode) (Placed, error) {
	placed := Placed{Path: path}
	err := locked(filepath.Dir(path), func(dir *os.File) error {
		info, err := os.Lstat(path)
		if err == nil && info.Mode() == mode { // a file, and no link to one
			if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, content) {
				return nil
			}
		}
		placed.Changed = true
		return replace(dir, path, content, mode)
	})
	return placed, err
}

// replace writes a file that nobody reads and then gives it its name. It is closed by then: a program that somebody has open
// to write cannot be started.
func replace(dir *os.File, path string, content []byte, mode fs.FileMode) error {
	staged := stagedName(path)
	if err := os.Remove(staged); err != nil && !errors.Is(err, fs.ErrNotExist) { // of one that was interrupted
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

// stagedName is hidden and has no ending that a runtime reads.
func stagedName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
}

// take removes a file if it is ours. One that is not there is no error.
func take(path string, ours func() error) (taken bool, err error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	err = locked(filepath.Dir(path), func(dir *os.File) error {
		if err := ours(); err != nil {
			return fmt.Errorf("%w; it is left", err)
		}
		if err := os.Remove(path); err != nil {
			return err
		}
		taken = true
		return dir.Sync()
	})
	return taken, err
}
