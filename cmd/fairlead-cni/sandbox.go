package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
)

// sandbox is the network namespace of a pod, with the handles to work in it from outside.
type sandbox struct {
	file   *os.File
	inside chan func()     // functions for the thread in the namespace
	handle *netlink.Handle // for the pod's namespace
	node   *netlink.Handle // for the node's namespace
	diag   *os.File        // a sock_diag socket, for the agent
	// withoutV6 is set if IPv6 is turned off in the namespace; the plugin then adds none.
	withoutV6 bool
	tables    map[bool]int // by whether IPv4: the interface's own table, if its default route is not the pod's
}

const procNet = "/proc/sys/net"

// openSandbox opens the namespace at path. The caller closes it.
func openSandbox(path string) (s *sandbox, err error) {
	s = &sandbox{tables: map[bool]int{}}
	defer func() {
		if err != nil {
			s.close()
			s = nil
			err = cni.Refusal(types.ErrInvalidNetNS, "open network namespace %.256q: %v", path, err)
		}
	}()
	if s.file, err = os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
		return s, err
	}
	var kind unix.Statfs_t
	if err := unix.Fstatfs(int(s.file.Fd()), &kind); err != nil {
		return s, err
	}
	if kind.Type != unix.NSFS_MAGIC {
		return s, errors.New("it is not a namespace")
	}
	home, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return s, err
	}
	info, err := s.file.Stat()
	if err != nil {
		return s, err
	}
	if os.SameFile(home, info) {
		return s, errors.New("it is the node's own")
	}
	if s.node, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return s, err
	}
	if err := s.enter(); err != nil {
		return s, err
	}
	return s, <-s.begin(s.open)
}

// open opens the sockets of the namespace. It runs inside.
func (s *sandbox) open() error {
	var err error
	if s.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return fmt.Errorf("open sock_diag socket: %w", err)
	}
	s.diag = os.NewFile(uintptr(fd), "sock_diag")
	for _, scope := range []string{"all", "default"} {
		value, err := readSetting(filepath.Join(procNet, "ipv6/conf", scope, "disable_ipv6"))
		if errors.Is(err, fs.ErrNotExist) || (err == nil && value != "0") {
			s.withoutV6 = true
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (s *sandbox) close() {
	if s.inside != nil {
		close(s.inside)
	}
	for _, handle := range []*netlink.Handle{s.handle, s.node} {
		if handle != nil {
			handle.Close()
		}
	}
	for _, file := range []*os.File{s.diag, s.file} {
		if file != nil {
			file.Close()
		}
	}
}

// enter starts a thread in the namespace. It runs what begin sends until the sandbox is closed, and
// ends.
func (s *sandbox) enter() error {
	entered, inside := make(chan error, 1), make(chan func())
	go func() {
		runtime.LockOSThread() // never unlocked: the thread stays inside, so nothing else may run on it
		if err := unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET); err != nil {
			entered <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		entered <- nil
		for fn := range inside {
			fn()
		}
	}()
	if err := <-entered; err != nil {
		return err
	}
	s.inside = inside
	return nil
}

// begin runs fn inside, and returns a channel for its error.
func (s *sandbox) begin(fn func() error) <-chan error {
	done := make(chan error, 1)
	s.inside <- func() { done <- fn() }
	return done
}

// configure sets up the interface in the pod: its addresses, and the default route through the
// node's end. It runs inside, and is idempotent.
func (s *sandbox) configure(ifName string, granted *cni.Answer, node net.HardwareAddr) error {
	link, err := s.handle.LinkByName(ifName)
	if err != nil {
		return fmt.Errorf("find interface %s of the pod: %w", ifName, err)
	}
	if err := s.enlarge(link, granted.Largest); err != nil {
		return err
	}
	if granted.Pieces > 0 {
		if err := s.handle.LinkSetGSOMaxSize(link, granted.Pieces); err != nil {
			return fmt.Errorf("limit the size of packets of the pod's interface %s: %w", ifName, err)
		}
	}
	// lo is the first device of every namespace.
	if err := s.handle.LinkSetUp(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 1}}); err != nil {
		return fmt.Errorf("set up lo of the pod: %w", err)
	}
	if err := quiet(ifName); err != nil {
		return err
	}
	for _, addr := range granted.Addresses {
		one := &netlink.Addr{IPNet: whole(addr)}
		if addr.Is6() {
			one.Flags = unix.IFA_F_NODAD
		}
		if err := s.handle.AddrReplace(link, one); err != nil {
			return fmt.Errorf("add address %s to the pod: %w", addr, err)
		}
	}
	if err := s.handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up interface %s of the pod: %w", ifName, err)
	}
	for _, addr := range granted.Addresses {
		if err := s.setGateway(link.Attrs().Index, addr, node); err != nil {
			return fmt.Errorf("add the pod's default route for %s: %w", addr, err)
		}
	}
	return nil
}

// enlarge raises the largest TCP packets that the pod sends and receives. The kernel does not copy
// these sizes to the pod's end when it makes the device.
func (s *sandbox) enlarge(link netlink.Link, largest cni.Largest) error {
	for _, one := range []struct {
		size int
		set  []func(netlink.Link, int) error
	}{
		{largest.V6, []func(netlink.Link, int) error{s.handle.LinkSetGSOMaxSize, s.handle.LinkSetGROMaxSize}},
		{largest.V4, []func(netlink.Link, int) error{s.handle.LinkSetGSOIPv4MaxSize, s.handle.LinkSetGROIPv4MaxSize}},
	} {
		for _, set := range one.set {
			if one.size == 0 {
				continue
			}
			if err := set(link, one.size); err != nil {
				return fmt.Errorf("raise the size of packets of the pod's interface %s: %w",
					link.Attrs().Name, err)
			}
		}
	}
	return nil
}

// quiet turns off duplicate address detection and router advertisements, as there is neither
// another holder of the address nor a router.
func quiet(ifName string) error {
	for _, key := range []string{"accept_dad", "accept_ra"} {
		err := writeSetting(filepath.Join(procNet, "ipv6/conf", ifName, key), "0")
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return fmt.Errorf("set %s of the pod: %w", key, err)
		}
	}
	return nil
}
