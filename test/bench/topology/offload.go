package topology

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offloads is the work on packets that an interface defers. A veth claims to support TSO and tx
// checksums but never does the work: the packet arrives as large, and its checksum as partial, as
// it left.
type Offloads struct {
	GRO        bool // merge what arrives; on a veth this also lets XDP frames in
	TSO        bool // accept TCP segments of up to 64 KiB; needs TxChecksum
	TxChecksum bool // accept packets without a complete checksum; must be off for XDP programs that rewrite
}

// etherValue is the kernel's struct ethtool_value.
type etherValue struct {
	command uint32
	value   uint32
}

// etherRequest is the kernel's struct ifreq as SIOCETHTOOL reads it.
type etherRequest struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// setOffloads configures an interface in the namespace of the calling thread, and fails if the
// kernel's settings afterward differ from the requested ones.
func setOffloads(name string, want Offloads) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	for _, feature := range []struct {
		name     string
		on       bool
		get, set uint32
	}{
		{"tx checksums", want.TxChecksum, unix.ETHTOOL_GTXCSUM, unix.ETHTOOL_STXCSUM},
		{"TSO", want.TSO, unix.ETHTOOL_GTSO, unix.ETHTOOL_STSO},
		{"GRO", want.GRO, unix.ETHTOOL_GGRO, unix.ETHTOOL_SGRO},
	} {
		value := uint32(0)
		if feature.on {
			value = 1
		}
		if _, err := askEther(fd, name, etherValue{feature.set, value}); err != nil {
			return fmt.Errorf("set %s of %s to %t: %w", feature.name, name, feature.on, err)
		}
		have, err := askEther(fd, name, etherValue{command: feature.get})
		if err != nil {
			return fmt.Errorf("read %s of %s: %w", feature.name, name, err)
		}
		if have != value {
			return fmt.Errorf("set %s of %s to %t: the kernel has %t (TSO needs tx checksums)",
				feature.name, name, feature.on, have != 0)
		}
	}
	return nil
}

func askEther(fd int, name string, value etherValue) (uint32, error) {
	request := etherRequest{data: unsafe.Pointer(&value)}
	if copy(request.name[:len(request.name)-1], name) < len(name) {
		return 0, unix.ENODEV
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	if errno != 0 {
		return 0, errno
	}
	return value.value, nil
}
