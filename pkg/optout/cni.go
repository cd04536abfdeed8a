package optout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

const (
	maxResult  = 1 << 20 // bytes; a plugin's result and configuration have a few KiB
	maxResults = 1 << 14 // files that are read
)

// CNI finds the network namespaces of pods through the cache of the runtime's CNI library: for each
// pod it has a file that names the pod and its namespace, whichever plugin set that up. Use NewCNI;
// the zero value is not usable.
type CNI struct {
	results    string
	netns      namespaces
	log        *slog.Logger
	known      map[string]*attachment // by file name
	failed     error                  // why no pod can be found
	lastLogged string                 // last error logged
}

// NewCNI returns a CNI that reads the files in results. netns is the directory in which the runtime
// keeps namespaces, host the cookie of the node's own namespace. On kernels that do not report
// cookies, the Finder that finder returns finds them; if finder is nil, nothing does.
func NewCNI(results, netns string, host uint64, finder func() (Finder, error), log *slog.Logger) *CNI {
	c := &CNI{results: results, netns: namespaces{dir: netns, host: host}, log: log, known: map[string]*attachment{}}
	c.failed = c.netns.open(finder)
	return c
}

// attachment is what one file says about a pod.
type attachment struct {
	stamp stamp
	pod   model.Name
	uid   string
	netns string
	err   error

	cookie uint64 // 0 until Find needs it
}

// stamp identifies a version of a file.
type stamp struct {
	inode uint64
	size  int64
	time  time.Time
}

// Dirs returns the directory of the files. The directory of the namespaces need not be watched:
// nothing is known of a namespace before its file exists.
func (c *CNI) Dirs() []string {
	if c.failed != nil {
		return nil
	}
	return []string{c.results}
}

// Refresh reads the files that are new or have changed.
func (c *CNI) Refresh() {
	if c.failed != nil {
		return
	}
	err := c.read()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != c.lastLogged && text != "" {
		c.log.Warn("cannot look for network namespaces of pods", "error", err)
	}
	c.lastLogged = text
}

func (c *CNI) read() error {
	dir, err := os.Open(c.results)
	if errors.Is(err, fs.ErrNotExist) {
		clear(c.known)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the CNI cache: %w", err)
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxResults + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the CNI cache: %w", err)
	}
	have := make(map[string]bool, len(entries))
	for _, entry := range entries[:min(len(entries), maxResults)] {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // gone by now, or not written by the library
		}
		have[entry.Name()] = true
		if was := c.known[entry.Name()]; was == nil || was.stamp != stampOf(info) {
			c.known[entry.Name()] = c.attachment(entry.Name())
		}
	}
	for name := range c.known {
		if !have[name] {
			delete(c.known, name)
		}
	}
	if len(entries) > maxResults {
		return fmt.Errorf("read the CNI cache: more than %d files in %s: ignoring the rest", maxResults, c.results)
	}
	return nil
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size(), time: info.ModTime()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = sys.Ino
	}
	return s
}

// attachment reads one file. A file that cannot be parsed yet is read again when it changes: the
// library writes it in place.
func (c *CNI) attachment(name string) *attachment {
	a := &attachment{}
	file, err := os.OpenFile(filepath.Join(c.results, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		a.err = err
		return a
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		a.err = errors.Join(err, errors.New("not a file"))
		return a
	}
	a.stamp = stampOf(info)
	content, err := io.ReadAll(io.LimitReader(file, maxResult+1))
	switch {
	case err != nil:
		a.err = err
	case len(content) > maxResult:
		a.err = fmt.Errorf("more than %d bytes", maxResult)
	default:
		a.err = a.parse(content)
	}
	if a.err != nil {
		c.log.Debug("not a CNI result", "file", name, "error", a.err)
	}
	return a
}

// parse parses the format "cniCacheV1". Older libraries do not record the namespace; then it is in
// the plugin's result.
func (a *attachment) parse(content []byte) error {
	var cached struct {
		Kind   string      `json:"kind"`
		Netns  string      `json:"netns"`
		Args   [][2]string `json:"cniArgs"`
		Result struct {
			Interfaces []struct {
				Sandbox string `json:"sandbox"`
			} `json:"interfaces"`
		} `json:"result"`
	}
	if err := json.Unmarshal(content, &cached); err != nil {
		return err
	}
	if cached.Kind != "cniCacheV1" {
		return fmt.Errorf("unknown kind %.64q", cached.Kind)
	}
	for _, arg := range cached.Args {
		switch arg[0] {
		case "K8S_POD_NAMESPACE":
			a.pod.Namespace = arg[1]
		case "K8S_POD_NAME":
			a.pod.Name = arg[1]
		case "K8S_POD_UID":
			a.uid = arg[1]
		}
	}
	a.netns = cached.Netns
	for i := range cached.Result.Interfaces {
		if a.netns == "" {
			a.netns = cached.Result.Interfaces[i].Sandbox
		}
	}
	return nil
}

// of reports whether a file is about the pod. A runtime that does not record the UID records the
// name. Then a pod's successor may be taken for it until the runtime has cleaned up, which harms
// neither.
func (a *attachment) of(pod *model.Pod) bool {
	return a.err == nil && a.pod == pod.Name && (a.uid == "" || a.uid == pod.LocalUID || a.uid == pod.UID)
}

// Find returns the cookie of the pod's network namespace, or of each of them if it had several.
func (c *CNI) Find(pod *model.Pod) ([]maps.OptoutKey, error) {
	if pod.HostNetwork {
		return nil, fmt.Errorf("%w by network namespace: it is in the node's own", ErrUnknown)
	}
	if c.failed != nil {
		return nil, fmt.Errorf("%w by network namespace: %w", ErrUnknown, c.failed)
	}
	var keys []maps.OptoutKey
	reason := fmt.Errorf("no file in %s names it", c.results)
	for _, a := range c.known {
		if !a.of(pod) {
			continue
		}
		if a.cookie == 0 {
			var err error
			if a.cookie, err = c.netns.cookie(a.netns); err != nil {
				a.cookie, reason = 0, err
				continue
			}
		}
		keys = append(keys, maps.OptoutKey{Id: a.cookie, Kind: maps.OptoutNetns})
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%w by network namespace: %w", ErrUnknown, reason)
	}
	return keys, nil
}
