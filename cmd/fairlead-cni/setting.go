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

// The kernel's settings are read and written by three calls each: package os has nine, to wait for what is never late.

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

// set makes a setting of a device.
func set(device string, s cni.Setting) error {
	if (s.Family != "ipv4" && s.Family != "ipv6") || filepath.Base(s.Key) != s.Key {
		return fmt.Errorf("setting %s/%s is none of a device", s.Family, s.Key)
	}
	err := writeSetting(filepath.Join(procNet, s.Family, "conf", device, s.Key), s.Value)
	if errors.Is(err, fs.ErrNotExist) && s.Family == "ipv6" { // a kernel without it
		return nil
	}
	if err != nil {
		return fmt.Errorf("set %s of %s: %w", s.Key, device, err)
	}
	return nil
}
