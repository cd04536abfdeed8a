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

// getID asks a namespace's file for the number of the namespace (NS_GET_ID, Linux 6.18); of a network namespace that is
// its cookie. It needs neither a capability nor to enter the namespace.
const getID = 0x8008b70d

// errNoID is the error of kernels that cannot tell.
var errNoID = errors.New("the kernel does not tell a namespace's number (NS_GET_ID, Linux 6.18)")

// namespaces finds the cookies of network namespaces that a runtime keeps as files of one directory.
type namespaces struct {
	dir  string // where the directory is for us
	host uint64 // the cookie of the node's own
	find Finder // nil where the kernel tells
}

// Finder finds the cookie of a network namespace by the inode number of its file, where the kernel does not tell it. Who asks keeps the file open.
type Finder interface {
	Cookie(inode uint64) (uint64, error)
}

// prefixes are the names that the directory has for a runtime.
func prefixes() []string { return []string{"/run/netns", "/var/run/netns"} }

// open finds out how cookies are found: as the kernel tells them, or else by what is opened for that, if it is not nil. It returns an error where they
// cannot be, or are other numbers than programs see.
func (n *namespaces) open(finder func() (Finder, error)) error {
	untold := n.tell()
	if !errors.Is(untold, errNoID) || finder == nil {
		return untold
	}
	return n.openFinder(finder, untold)
}

func (n *namespaces) openFinder(finder func() (Finder, error), untold error) error {
	find, err := finder()
	if err == nil {
		n.find = find
		err = n.tell()
	}
	if err != nil {
		n.find = nil
		return fmt.Errorf("%w, and they cannot be found otherwise: %w", untold, err)
	}
	return nil
}

// tell returns an error where the cookie of the node's own namespace is not what is found of it.
func (n *namespaces) tell() error {
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
		return fmt.Errorf("%w: the node's own is %d, and programs see %d", errNoID, id, n.host)
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

// cookie returns the cookie of the network namespace that a runtime calls by the path. Only the name is believed: a path
// may come from a file that was made by anybody who may write in the runtime's directory.
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
		return 0, fmt.Errorf("inspect namespace %s: it is not one of networks", name)
	}
	id, err := n.idOf(file)
	if err == nil && id == n.host {
		err = fmt.Errorf("inspect namespace %s: it is the node's own", name)
	}
	return id, err
}

// openNamespace opens the file of a namespace, and nothing else: not a link, and no device or pipe, which act when they
// are opened.
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
		return nil, fmt.Errorf("inspect %s: it is no namespace; in a container, mount its directory with propagation from the host", path)
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
