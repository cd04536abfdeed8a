package main

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

// forRates are settings of a node whose pods are kept to rates: what they become of what they were. Agents of the kind set them all.
func forRates() map[string]func(was string) string {
	return map[string]func(string) string{
		"net/core/default_qdisc":       constant("fq"),
		"net/core/netdev_max_backlog":  atLeast(1000),
		"net/core/somaxconn":           atLeast(4096),
		"net/ipv4/tcp_max_syn_backlog": atLeast(4096),

		"net/ipv4/ip_forward_update_priority": constant("0"), // or what the stack forwards has that of its TOS, not its pod's
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

// setForRates sets them below root, and notes in dir what they were; or puts back what it has set before.
func setForRates(root, dir string, wanted bool) (all []Change, err error) {
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
			if err = note(root, dir, map[string]change{file: {was, is}}); err == nil {
				err = os.WriteFile(path, []byte(is), 0)
			}
			if errors.Is(err, unix.ENOENT) { // a kernel without fq, which "fairlead status" says of each device
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

// unsetForRates puts back those that are noted, unless somebody has set them since, and forgets them.
func unsetForRates(root, dir string) error {
	noted, err := readSettings(root, dir)
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
			return fmt.Errorf("put setting %s back: %w", file, err)
		}
		delete(noted.Files, file)
		found = true
	}
	if !found {
		return nil
	}
	return noted.write(dir)
}
