package optout

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// known is a Finder with fixed answers.
type known map[uint64]uint64

// Cookie implements Finder.
func (k known) Cookie(inode uint64) (uint64, error) {
	if id := k[inode]; id != 0 {
		return id, nil
	}
	return 0, errors.New("nobody knows it")
}

func inodeOf(t *testing.T, path string) uint64 {
	t.Helper()
	var info unix.Stat_t
	if err := unix.Stat(path, &info); err != nil {
		t.Fatal(err)
	}
	return info.Ino
}

// If the kernel does not report cookies, a Finder finds them, provided that it finds the right one
// for the node's own namespace.
func TestCNIByAFinder(t *testing.T) {
	rig.Root(t)
	r := newRuntime(t)
	r.bind("cni-1", rig.NewNetns(t, "pod"))
	const own = "/proc/thread-self/ns/net"
	if err := errors.Join(os.WriteFile(filepath.Join(r.netns, "own"), nil, 0o600), unix.Mount(own, filepath.Join(r.netns, "own"), "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(filepath.Join(r.netns, "own"), unix.MNT_DETACH) }()
	host, pod := inodeOf(t, own), inodeOf(t, filepath.Join(r.netns, "cni-1"))
	for _, tt := range []struct {
		name  string
		finds known
		err   error
		netns string
		want  string // in the error; empty means that 7 is found
	}{
		{"found", known{host: 1, pod: 7}, nil, "cni-1", ""},
		{"not found", known{host: 1}, nil, "cni-1", "nobody knows it"},
		{"the node's own", known{host: 1}, nil, "own", "it is the node's own"},
		{"of other numbers", known{host: 2, pod: 7}, nil, "cni-1", "the node's own is 2, but programs see 1"},
		{"by nobody", nil, errors.New("no permission"), "cni-1", "no permission"},
	} {
		c := NewCNI(r.results, r.netns, 1, nil, slog.New(slog.NewTextHandler(t.Output(), nil)))
		c.failed = c.netns.openFinder(func() (Finder, error) { return tt.finds, tt.err }, errNoID)
		r.write("net-c1-eth0", result(web(), "/run/netns/"+tt.netns))
		c.Refresh()
		keys, err := c.Find(web())
		switch {
		case tt.want == "" && (err != nil || len(keys) != 1 || keys[0].Id != 7):
			t.Errorf("%s: %v, %v", tt.name, keys, err)
		case tt.want != "" && (!errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, %v, want %q", tt.name, keys, err, tt.want)
		}
	}
}
