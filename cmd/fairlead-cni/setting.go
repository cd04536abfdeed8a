package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
)

// Settings are read and written with three system calls each. Package os takes nine, because it
// adds the file to the poller, which a sysctl never needs.

func readSetting(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var value [64]byte
	n, err := unix.Read(fd, value[:])
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return strings.TrimSpace(string(value[:n])), nil
}

func writeSetting(path, value string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// set changes a setting of a device.
func set(device string, s cni.Setting) error {
	if (s.Family != "ipv4" && s.Family != "ipv6") || filepath.Base(s.Key) != s.Key {
		return fmt.Errorf("%s/%s is not a setting of a device", s.Family, s.Key)
	}
	err := writeSetting(filepath.Join(procNet, s.Family, "conf", device, s.Key), s.Value)
	if errors.Is(err, fs.ErrNotExist) && s.Family == "ipv6" { // a kernel without IPv6
		return nil
	}
	if err != nil {
		return fmt.Errorf("set %s of %s: %w", s.Key, device, err)
	}
	return nil
}
