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

// maxFile limits how much of a file is read.
const maxFile = 256 << 10

// Root is the directory that contains proc, sys and etc of the machine to check.
type Root string

// open opens a regular file for reading. It fails for anything that could block the reader.
func (r Root) open(name string) (*os.File, error) {
	file, err := os.OpenFile(r.path(name), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file", name), err, file.Close())
	}
	return file, nil
}

// path returns the path of one of the machine's files. It does not clean it: the kernel resolves
// ".." after a link relative to the link's target, which is how the checks find the parents of
// devices.
func (r Root) path(name string) string { return string(r) + "/" + name }

// read returns the content of a file without surrounding white space.
func (r Root) read(name string) (string, error) {
	file, err := r.open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFile))
	return strings.TrimSpace(string(text)), err
}

// list returns the names in a directory, none if the directory does not exist.
func (r Root) list(name string) ([]string, error) {
	entries, err := os.ReadDir(r.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (r Root) exists(name string) bool {
	_, err := os.Lstat(r.path(name))
	return err == nil
}

// link returns the last element of a link's target, "" if it is not a link.
func (r Root) link(name string) string {
	to, err := os.Readlink(r.path(name))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// processes returns the names of the visible processes, with an error if only those of this
// container are visible.
func (r Root) processes() (map[string]bool, error) {
	pids, err := r.list("proc")
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, pid := range pids {
		if pid == "" || pid[0] < '0' || pid[0] > '9' {
			continue
		}
		if name, err := r.read("proc/" + pid + "/comm"); err == nil {
			names[name] = true
		}
	}
	if r.contained() {
		return names, errors.New("only the processes of this container are visible")
	}
	return names, nil
}

// contained reports whether this process runs in the agent's container, where it sees what the
// node's kernel reports, but only its own processes and files.
func (r Root) contained() bool {
	init, err := r.read("proc/1/comm")
	return err == nil && strings.HasPrefix(init, "fairlead")
}

// unknown returns the line for a check that failed with err.
func unknown(check string, err error) Line {
	return Line{check, Unknown, "it could not be checked: " + err.Error(), howToLearn(err)}
}

// howToLearn returns how to learn what could not be learned because of err.
func howToLearn(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "run the command as root, on the node or in the agent's container"
	case errors.Is(err, fs.ErrNotExist):
		return "run the command where all of /proc and /sys is visible, as on the node; the kernel may also lack this"
	default:
		return "mend what the error says and run the command again; the agent may work nevertheless"
	}
}

func mib(bytes uint64) string { return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20) }
