package optout

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// getID is the ioctl NS_GET_ID (Linux 6.18), which returns the number of the namespace of an open
// file; for a network namespace that is its cookie. It needs no capability and does not enter the
// namespace.
const getID = 0x8008b70d

// errNoID is the error on kernels without NS_GET_ID.
var errNoID = errors.New("the kernel does not report a namespace's number (NS_GET_ID, Linux 6.18)")

// namespaces finds the cookies of network namespaces that a runtime keeps as files in one
// directory.
type namespaces struct {
	dir  string // the directory as this process sees it
	host uint64 // cookie of the node's own namespace
	find Finder // nil if the kernel reports cookies
}

// Finder finds the cookie of a network namespace by the inode number of its file, on kernels that
// do not report it. The caller must keep the file open.
type Finder interface {
	Cookie(inode uint64) (uint64, error)
}

// prefixes returns the names by which runtimes know the directory.
func prefixes() []string { return []string{"/run/netns", "/var/run/netns"} }

// open decides how to find cookies: from the kernel, or else with the Finder that finder returns,
// if finder is not nil. It returns an error if they cannot be found, or differ from those that
// programs see.
func (n *namespaces) open(finder func() (Finder, error)) error {
	unknown := n.checkOwn()
	if !errors.Is(unknown, errNoID) || finder == nil {
		return unknown
	}
	return n.openFinder(finder, unknown)
}

func (n *namespaces) openFinder(finder func() (Finder, error), unknown error) error {
	find, err := finder()
	if err == nil {
		n.find = find
		err = n.checkOwn()
	}
	if err != nil {
		n.find = nil
		return fmt.Errorf("%w, and nothing else finds it: %w", unknown, err)
	}
	return nil
}

// checkOwn returns an error unless the cookie found for the node's own namespace is the right one.
func (n *namespaces) checkOwn() error {
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer own.Close()
	id, err := n.idOf(own)
	if err != nil {
		return err
	}
	if id != n.host {
		return fmt.Errorf("%w: the node's own is %d, but programs see %d", errNoID, id, n.host)
	}
	return nil
}

func (n *namespaces) idOf(file *os.File) (uint64, error) {
	if n.find == nil {
		return idOf(file)
	}
	var info unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &info); err != nil {
		return 0, fmt.Errorf("ask for the number of a namespace: %w", err)
	}
	return n.find.Cookie(info.Ino)
}

// cookie returns the cookie of the network namespace that a runtime knows by path. It uses only the
// last element: the path may come from a file of anybody who can write to the runtime's directory.
func (n *namespaces) cookie(path string) (uint64, error) {
	dir, name := filepath.Split(path)
	if name == "" || name == "." || name == ".." || !slices.Contains(prefixes(), strings.TrimSuffix(dir, "/")) {
		return 0, fmt.Errorf("open network namespace %.128q: it is not in %s", path, strings.Join(prefixes(), " or "))
	}
	file, err := openNamespace(filepath.Join(n.dir, name))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	kind, err := unix.IoctlRetInt(int(file.Fd()), unix.NS_GET_NSTYPE)
	if err != nil {
		return 0, fmt.Errorf("inspect namespace %s: %w", name, err)
	}
	if kind != unix.CLONE_NEWNET {
		return 0, fmt.Errorf("inspect namespace %s: it is not a network namespace", name)
	}
	id, err := n.idOf(file)
	if err == nil && id == n.host {
		err = fmt.Errorf("inspect namespace %s: it is the node's own", name)
	}
	return id, err
}

// openNamespace opens the file of a namespace and nothing else: neither a link, nor a device or
// pipe, where opening has effects.
func openNamespace(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	defer unix.Close(fd)
	var info unix.Statfs_t
	if err := unix.Fstatfs(fd, &info); err != nil {
		return nil, fmt.Errorf("inspect %s: %w", path, err)
	}
	if info.Type != unix.NSFS_MAGIC {
		return nil, fmt.Errorf("inspect %s: it is not a namespace; in a container, mount its directory with propagation from the host", path)
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
}

func idOf(file *os.File) (id uint64, err error) {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), getID, uintptr(unsafe.Pointer(&id)))
	switch errno {
	case 0:
		return id, nil
	case unix.ENOTTY, unix.EINVAL:
		return 0, errNoID
	}
	return 0, fmt.Errorf("ask for the number of a namespace: %w", errno)
}
