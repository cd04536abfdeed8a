package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// Features are the optional features of the running kernel.
type Features struct {
	CanRefuse bool // a connection to a service without backends fails with ECONNREFUSED
}

// HostNetns returns the cookie of this process's network namespace, which for an agent is the
// node's.
func HostNetns() (uint64, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		socket, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		return 0, fmt.Errorf("identify the network namespace: open socket: %w", err)
	}
	defer unix.Close(socket)
	cookie, err := unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("identify the network namespace: %w", err)
	}
	return cookie, nil
}

func probe() (Features, error) {
	err := probeSetRetval()
	if err != nil && !errors.Is(err, ebpf.ErrNotSupported) {
		return Features{}, fmt.Errorf("probe bpf_set_retval: %w", err)
	}
	return Features{CanRefuse: err == nil}, nil
}

// settings are the configuration that programs get when they are loaded.
type settings struct {
	Features
	hostNetns uint64
	token     token
	needs     hookSet // programs for other hooks are not loaded

	congestion string
}

func (d *cgroupLinks) settings(found Features) settings {
	return settings{found, d.hostNetns, d.token, d.needs, d.congestion}
}

// fields returns the fields of the programs' struct config.
func (s settings) fields() map[string]uint64 {
	var letters [8]byte
	copy(letters[:], s.congestion)
	fields := map[string]uint64{
		"host_netns": s.hostNetns, "can_refuse": 0, "probe": uint64(s.token), "congestion": binary.LittleEndian.Uint64(letters[:]),
	}
	if s.CanRefuse {
		fields["can_refuse"] = 1
	}
	return fields
}

// load loads all needed programs over the given maps. It attaches nothing.
func load(m *maps.Maps, s settings) (programs, error) {
	spec, err := bpf.LoadSock()
	if err != nil {
		return nil, fmt.Errorf("read program specs: %w", err)
	}
	if err := bpf.SetConfig(spec.Variables["sock_cfg"], s.fields()); err != nil {
		return nil, err
	}
	for name := range spec.Programs {
		if hooksOf(name)&^s.needs != 0 {
			delete(spec.Programs, name)
		}
	}
	loaded, err := loadOver(m, spec)
	if err != nil {
		return nil, err
	}
	defer loaded.Close()
	progs := programs{}
	for name, programSpec := range spec.Programs {
		progs[name] = program{loaded.DetachProgram(name), programSpec.AttachType}
	}
	return progs, nil
}

// loadOver loads an object over the given maps.
func loadOver(m *maps.Maps, spec *ebpf.CollectionSpec) (*ebpf.Collection, error) {
	return bpf.NewCollection(spec, m.Replacements(spec))
}
