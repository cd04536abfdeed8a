package rig

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Bridge creates a bridge and sets it up.
func Bridge(t T, n *Netns, ifname string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = ifname
	if err := n.handle.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		t.Fatalf("create bridge %s in %s: %v", ifname, n, err)
	}
	if err := n.setUp(ifname); err != nil {
		t.Fatalf("%v", err)
	}
}

// Enslave makes an interface a port of a bridge.
func Enslave(t T, n *Netns, ifname, bridge string) {
	t.Helper()
	port, err := n.handle.LinkByName(ifname)
	master, masterErr := n.handle.LinkByName(bridge)
	if err := errors.Join(err, masterErr); err != nil {
		t.Fatalf("add %s to %s in %s: %v", ifname, bridge, n, err)
	}
	if err := n.handle.LinkSetMaster(port, master); err != nil {
		t.Fatalf("add %s to %s in %s: %v", ifname, bridge, n, err)
	}
}

// SetMTU sets the MTU of an interface.
func SetMTU(t T, n *Netns, ifname string, mtu int) {
	t.Helper()
	link, err := n.handle.LinkByName(ifname)
	if err == nil {
		err = n.handle.LinkSetMTU(link, mtu)
	}
	if err != nil {
		t.Fatalf("set the MTU of %s in %s: %v", ifname, n, err)
	}
}

// The ethtool requests that SetOffloads sends.
const (
	ethtoolTXSums = 0x17
	ethtoolTSO    = 0x1f
	ethtoolGSO    = 0x24
	ethtoolGRO    = 0x2c
)

// Offloads are the features that a device has enabled.
type Offloads struct {
	// Sums: complete checksums and segment large packets. On a veth, nothing does either before the
	// packets really leave.
	Sums  bool
	Merge bool // GRO; a veth also needs it to receive what XDP sends through its peer
}

// SetOffloads turns the offloads of an interface on or off.
func SetOffloads(t T, n *Netns, ifname string, o Offloads) {
	t.Helper()
	err := n.Do(func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		return errors.Join(
			setFeature(socket, ifname, ethtoolTXSums, o.Sums), setFeature(socket, ifname, ethtoolTSO, o.Sums),
			setFeature(socket, ifname, ethtoolGSO, o.Sums), setFeature(socket, ifname, ethtoolGRO, o.Merge),
		)
	})
	if err != nil {
		t.Fatalf("set offloads of %s in %s: %v", ifname, n, err)
	}
}

func setFeature(socket int, ifname string, request uint32, on bool) error {
	value := struct{ request, on uint32 }{request: request}
	if on {
		value.on = 1
	}
	var name [unix.IFNAMSIZ]byte
	copy(name[:len(name)-1], ifname)
	ifreq := struct {
		name  [unix.IFNAMSIZ]byte
		value unsafe.Pointer
		_     [16]byte
	}{name: name, value: unsafe.Pointer(&value)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifreq))); errno != 0 {
		return fmt.Errorf("request %#x: %w", request, errno)
	}
	return nil
}
