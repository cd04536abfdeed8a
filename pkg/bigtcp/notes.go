package bigtcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/devices"
)

// notesFile is the name of the file in the state directory.
const notesFile = "bigtcp.json"

// note holds the limits that a device had, and those that it was given.
type note struct {
	Index int    `json:"index"`
	Was   limits `json:"was"`
	Is    limits `json:"is"`
}

// notes holds the notes of all devices, by name.
type notes map[string]note

func readNotes(dir string) (notes, error) {
	path := filepath.Join(dir, notesFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return notes{}, nil
	}
	noted := notes{}
	if err == nil {
		err = json.Unmarshal(content, &noted)
	}
	if err != nil {
		return nil, fmt.Errorf("read the devices' earlier limits from %s: %w", path, err)
	}
	return noted, nil
}

// replace atomically writes the notes if they differ from before. If there are none, it removes the
// file.
func (n notes) replace(dir string, before notes) error {
	if maps.Equal(n, before) {
		return nil
	}
	path := filepath.Join(dir, notesFile)
	if len(n) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the devices' earlier limits: %w", err)
		}
		return nil
	}
	content, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return fmt.Errorf("save the devices' earlier limits: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("save the devices' earlier limits: %w", err)
	}
	staged := filepath.Join(dir, "."+notesFile)
	if err := os.WriteFile(staged, content, 0o600); err != nil {
		return fmt.Errorf("save the devices' earlier limits: %w", err)
	}
	if err := os.Rename(staged, path); err != nil {
		return fmt.Errorf("save the devices' earlier limits: %w", err)
	}
	return nil
}

// of returns the notes of these devices.
func (n notes) of(links []netlink.Link) notes {
	kept := notes{}
	for _, link := range links {
		kept[link.Attrs().Name] = n[link.Attrs().Name]
	}
	return kept
}

// putBack restores the earlier limits of the devices, except where somebody else has changed them
// since, and returns the names of those that it restored.
func (n notes) putBack(handle *netlink.Handle, links []netlink.Link) (names []string, err error) {
	var errs []error
	for _, link := range links {
		at := link.Attrs()
		noted, there := n[at.Name]
		if !there || noted.Index != at.Index || limitsOf(at) != noted.Is {
			continue
		}
		err := noted.Was.set(handle, link)
		if err == nil {
			names = append(names, at.Name)
		}
		errs = append(errs, err)
	}
	slices.Sort(names)
	return names, errors.Join(errs...)
}

// Restore restores the limits that devices had before any Controller with this directory, and returns
// the names of the devices.
func Restore(dir string) (names []string, err error) {
	noted, err := readNotes(dir)
	if err != nil || len(noted) == 0 {
		return nil, err
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink socket: %w", err)
	}
	defer handle.Close()
	links, err := devices.Dump(handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the node's devices: %w", err)
	}
	if names, err = noted.putBack(handle, links); err != nil {
		return names, err
	}
	return names, notes{}.replace(dir, noted)
}
