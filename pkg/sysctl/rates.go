package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// forRates returns the settings of a node whose pods have rates, each with a function from the old
// value to the new one. Cilium's bandwidth manager sets the first four in the same way.
func forRates() map[string]func(was string) string {
	return map[string]func(string) string{
		"net/core/default_qdisc":       constant("fq"),
		"net/core/netdev_max_backlog":  atLeast(1000),
		"net/core/somaxconn":           atLeast(4096),
		"net/ipv4/tcp_max_syn_backlog": atLeast(4096),

		// Forwarding in the stack would otherwise replace the pod's priority by one from the
		// packet's TOS.
		"net/ipv4/ip_forward_update_priority": constant("0"),
	}
}

func atLeast(least int) func(string) string {
	return func(was string) string {
		if n, err := strconv.Atoi(was); err == nil && n >= least {
			return was
		}
		return strconv.Itoa(least)
	}
}

// ApplyForRates sets these below root, and saves the former values in dir. If rates are not wanted,
// it restores the saved values.
func ApplyForRates(root, dir string, wanted bool) (all []Change, err error) {
	if !wanted {
		return nil, unsetForRates(root, dir)
	}
	for _, file := range slices.Sorted(maps.Keys(forRates())) {
		path, name := filepath.Join(root, file), strings.ReplaceAll(file, "/", ".")
		was, err := readSetting(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return all, fmt.Errorf("read setting %s: %w", name, err)
		}
		is := forRates()[file](was)
		if is != was {
			if err = Save(root, dir, map[string]Edit{file: {was, is}}); err == nil {
				err = os.WriteFile(path, []byte(is), 0)
			}
			// A kernel without fq, which "fairlead status" reports for each device.
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			if err != nil {
				return all, fmt.Errorf("set %s: %w", name, err)
			}
		}
		all = append(all, Change{name + "=" + is, is != was})
	}
	return all, nil
}

// unsetForRates restores the saved values of these settings, unless somebody has changed them
// since, and forgets the values.
func unsetForRates(root, dir string) error {
	noted, err := readSaved(root, dir)
	if err != nil {
		return err
	}
	found := false
	for file := range forRates() {
		c, there := noted.Files[file]
		if !there {
			continue
		}
		path := filepath.Join(root, file)
		now, err := readSetting(path)
		if err == nil && now == c.Is {
			err = os.WriteFile(path, []byte(c.Was), 0)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("restore setting %s: %w", file, err)
		}
		delete(noted.Files, file)
		found = true
	}
	if !found {
		return nil
	}
	return noted.write(dir)
}
