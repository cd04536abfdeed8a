package preflight

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxFile bounds what is read of a file.
const maxFile = 256 << 10

// open opens a file that is read, and nothing that would make the reader wait.
func (n *Node) open(name string) (*os.File, error) {
	file, err := os.OpenFile(n.path(name), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is no file", name), err, file.Close())
	}
	return file, nil
}

// path returns where a file of the machine is. It is not cleaned: the kernel takes ".." after a link as what is above where
// the link leads, which is how the parents of devices are found.
func (n *Node) path(name string) string { return n.Root + "/" + name }

// read returns what is in a file, without blanks around it.
func (n *Node) read(name string) (string, error) {
	file, err := n.open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFile))
	return strings.TrimSpace(string(text)), err
}

// list returns the names in a directory; none if there is no such directory.
func (n *Node) list(name string) ([]string, error) {
	entries, err := os.ReadDir(n.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (n *Node) exists(name string) bool {
	_, err := os.Lstat(n.path(name))
	return err == nil
}

// link returns the last part of where a link leads, "" if it is none.
func (n *Node) link(name string) string {
	to, err := os.Readlink(n.path(name))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// processes returns the names of the processes that can be seen, or says that none but our own can.
func (n *Node) processes() (map[string]bool, error) {
	pids, err := n.list("proc")
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, pid := range pids {
		if pid == "" || pid[0] < '0' || pid[0] > '9' {
			continue
		}
		if name, err := n.read("proc/" + pid + "/comm"); err == nil {
			names[name] = true
		}
	}
	if n.contained() {
		return names, errors.New("only the processes of this container are visible")
	}
	return names, nil
}

// contained reports whether this is the agent's container: it sees what the node's kernel tells, and of the node's processes and
// files those of its own alone.
func (n *Node) contained() bool {
	init, err := n.read("proc/1/comm")
	return err == nil && strings.HasPrefix(init, "fairlead")
}

// unknown is the line of what could not be looked at.
func unknown(check string, err error) Line {
	l := Line{Check: check, State: Unknown, Found: "it could not be checked: " + err.Error()}
	if errors.Is(err, fs.ErrPermission) {
		l.Cure = "run the command as root, on the node or in the agent's container"
	}
	return l
}

func mib(bytes uint64) string { return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20) }
