package rig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Netns is a network namespace. Only an open file keeps it alive: it ends with Close or with the
// process, however the process ends, and two namespaces cannot clash over a name.
type Netns struct {
	label  string
	file   *os.File
	handle *netlink.Handle
}

// NewNetns returns a new network namespace that is closed when the test ends. The label identifies
// it in messages.
func NewNetns(t T, label string) *Netns {
	t.Helper()
	n, err := CreateNetns(label)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("%v", err)
		}
	})
	return n
}

// CreateNetns returns a new network namespace in which lo is up and IPv6 addresses are usable at once. The caller
// closes it.
func CreateNetns(label string) (*Netns, error) {
	n := &Netns{label: label}
	create := func() error { return unix.Unshare(unix.CLONE_NEWNET) }
	if err := onThread(create, returnHome, n.init); err != nil {
		return nil, errors.Join(fmt.Errorf("create network namespace %s: %w", label, err), n.Close())
	}
	return n, nil
}

// OpenNetns opens an existing network namespace by its path. The caller closes it.
func OpenNetns(label, path string) (*Netns, error) {
	n := &Netns{label: label}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", label, err)
	}
	n.file = file
	if n.handle, err = netlink.NewHandleAt(netns.NsHandle(n.FD()), unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(fmt.Errorf("open network namespace %s: %w", label, err), n.Close())
	}
	return n, nil
}

// init runs in the new namespace.
func (n *Netns) init() error {
	var err error
	if n.file, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	// Duplicate address detection would delay every address by a second or more. It is off only if
	// both settings are 0.
	for _, scope := range []string{"all", "default"} {
		err := writeSysctl("net/ipv6/conf/"+scope+"/accept_dad", "0")
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return err
		}
	}
	if n.handle, err = netlink.NewHandleAt(netns.NsHandle(n.FD()), unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	return n.setUp("lo")
}

// String returns the label.
func (n *Netns) String() string { return n.label }

// FD returns the descriptor of the namespace; it is valid until Close.
func (n *Netns) FD() int { return int(n.file.Fd()) }

// Path returns a path to the namespace for other processes of this machine, such as nsenter --net=PATH. It is valid
// until Close.
func (n *Netns) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.FD()) }

// Do runs fn in the namespace and returns its error. fn runs in its own goroutine on its own
// thread. It may end the test, but goroutines that it starts run outside the namespace. Code that
// opens sockets in fn must not start any: dial and listen with addresses, not with names.
func (n *Netns) Do(fn func() error) error { return onThread(n.enter, returnHome, fn) }

// Cookie returns the namespace's cookie, a number that the kernel never gives to another namespace.
func (n *Netns) Cookie() (cookie uint64, err error) {
	err = n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return cookie, err
}

// SetSysctl sets a kernel setting of the namespace, such as net/ipv4/ip_forward.
func (n *Netns) SetSysctl(name, value string) error {
	return n.Do(func() error { return writeSysctl(name, value) })
}

// Close releases the namespace. The kernel removes it and its interfaces once no process and no
// socket uses it. A second Close does nothing.
func (n *Netns) Close() error {
	if n.handle != nil {
		n.handle.Close()
		n.handle = nil
	}
	if n.file == nil {
		return nil
	}
	if err := n.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close network namespace %s: %w", n.label, err)
	}
	return nil
}

// enter moves the calling thread into the namespace.
func (n *Netns) enter() error {
	if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", n.label, err)
	}
	return nil
}

// writeSysctl writes a sysctl in the namespace of the calling thread.
func writeSysctl(name, value string) error {
	return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0)
}

// returnHome moves the calling thread back to the namespace of the process.
func returnHome(home *os.File) error { return unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) }

// onThread runs enter and fn on a thread that nothing else uses meanwhile, and then leave with the
// namespace that the thread was in before. A thread that cannot return is never used again: it ends
// with its goroutine.
func onThread(enter func() error, leave func(home *os.File) error, fn func() error) error {
	var err error
	returned := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var home *os.File
		if home, err = os.Open("/proc/thread-self/ns/net"); err == nil {
			defer home.Close()
			err = enter()
		}
		if err != nil {
			returned = true
			runtime.UnlockOSThread()
			return
		}
		defer func() {
			if leaveErr := leave(home); leaveErr != nil {
				err = errors.Join(err, fmt.Errorf("leave network namespace: %w", leaveErr))
				return
			}
			runtime.UnlockOSThread()
		}()
		err = fn()
		returned = true
	}()
	<-done
	if !returned {
		// fn ended its goroutine, as t.FailNow does; that is meant for the caller's goroutine.
		runtime.Goexit()
	}
	return err
}
