package optout

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/bench/minimal/limited"
	"fairlead.io/fairlead/test/rig"
)

// runtime fakes what a container runtime leaves on a node: namespaces and CNI results.
type runtime struct {
	t              *testing.T
	results, netns string
}

func newRuntime(t *testing.T) *runtime {
	t.Helper()
	return &runtime{t, t.TempDir(), t.TempDir()}
}

// bind binds a namespace to a file, as "ip netns add" and runtimes do.
func (r *runtime) bind(name string, ns *rig.Netns) {
	r.t.Helper()
	path := filepath.Join(r.netns, name)
	if err := errors.Join(os.WriteFile(path, nil, 0o600), unix.Mount(ns.Path(), path, "", unix.MS_BIND, "")); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			r.t.Error(err)
		}
	})
}

// result is what the library writes about an attachment.
func result(pod *model.Pod, netns string) map[string]any {
	return map[string]any{
		"kind": "cniCacheV1", "containerId": "c1", "config": "e30=", "ifName": "eth0", "networkName": "kindnet", "netns": netns,
		"cniArgs": [][]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", pod.Namespace}, {"K8S_POD_NAME", pod.Name.Name}, {"K8S_POD_UID", pod.UID},
		},
		"result": map[string]any{"cniVersion": "1.0.0", "interfaces": []any{map[string]any{"name": "veth1"}}},
	}
}

func (r *runtime) write(file string, content any) {
	r.t.Helper()
	text, ok := content.(string)
	if !ok {
		encoded, err := json.Marshal(content)
		if err != nil {
			r.t.Fatal(err)
		}
		text = string(encoded)
	}
	if err := os.WriteFile(filepath.Join(r.results, file), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func web() *model.Pod {
	return &model.Pod{Name: model.Name{Namespace: "shop", Name: "web"}, UID: "uid-1", LocalUID: "uid-1"}
}

func cookie(t *testing.T, ns *rig.Netns) (id uint64) {
	t.Helper()
	read := func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		id, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	}
	err := error(nil)
	if ns == nil {
		err = read()
	} else {
		err = ns.Do(read)
	}
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// newCNI returns a CNI, and whether the kernel reports cookies. If it does not, newCNI checks that
// the CNI says so.
func newCNI(t *testing.T, r *runtime) (*CNI, bool) {
	t.Helper()
	c := NewCNI(r.results, r.netns, cookie(t, nil), nil, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if c.failed == nil {
		return c, true
	}
	t.Logf("the kernel does not report cookies: %v", c.failed)
	c.Refresh()
	if keys, err := c.Find(web()); !errors.Is(err, ErrUnknown) || !errors.Is(err, errNoID) || len(c.Dirs()) > 0 {
		t.Errorf("a kernel that does not report cookies: found %v, %v, watching %v", keys, err, c.Dirs())
	}
	return c, false
}

// The number that the kernel reports for a namespace's file is the cookie that programs see, or
// Find says that the kernel does not report it.
func TestCNIFindsCookies(t *testing.T) {
	rig.Root(t)
	r := newRuntime(t)
	ns := rig.NewNetns(t, "pod")
	r.bind("cni-1", ns)
	c, tells := newCNI(t, r)
	sandboxed := func(netns string) map[string]any {
		content := result(web(), "")
		content["result"] = map[string]any{"interfaces": []any{map[string]any{"name": "v"}, map[string]any{"sandbox": netns}}}
		return content
	}
	noUID := result(web(), "/run/netns/cni-1")
	noUID["cniArgs"] = [][]string{{"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "web"}}
	static := web()
	static.LocalUID, static.UID = "uid-1", "mirror"
	hostNetwork := web()
	hostNetwork.HostNetwork = true
	renamed := web()
	renamed.Name.Name = "api"
	successor := web()
	successor.UID, successor.LocalUID = "uid-2", "uid-2"
	for _, test := range []struct {
		name    string
		content any
		pod     *model.Pod
		reason  string // empty means found
	}{
		{"as today", result(web(), "/run/netns/cni-1"), web(), ""},
		{"as it was", result(web(), "/var/run/netns/cni-1"), web(), ""},
		{"older library", sandboxed("/var/run/netns/cni-1"), web(), ""},
		{"older runtime", noUID, web(), ""},
		{"static pod", result(web(), "/run/netns/cni-1"), static, ""},
		{"host network", result(web(), "/run/netns/cni-1"), hostNetwork, "it is in the node's own"},
		{"another pod", result(web(), "/run/netns/cni-1"), renamed, "names it"},
		{"a pod of that name before", result(web(), "/run/netns/cni-1"), successor, "names it"},
		{"no namespace", result(web(), "/run/netns/cni-2"), web(), "no such file"},
		{"a process's namespace", result(web(), ns.Path()), web(), "it is not in /run/netns"},
		{"a path that leads away", result(web(), "/run/netns/../../proc/self/ns/net"), web(), "it is not in /run/netns"},
		{"the directory itself", result(web(), "/run/netns/.."), web(), "it is not in /run/netns"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r.write("net-c1-eth0", test.content)
			c.Refresh()
			keys, err := c.Find(test.pod)
			switch {
			case !tells:
				if !errors.Is(err, ErrUnknown) || !test.pod.HostNetwork && !errors.Is(err, errNoID) {
					t.Errorf("the kernel does not report cookies, but Find returns %v, %v", keys, err)
				}
			case test.reason != "":
				if !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), test.reason) {
					t.Errorf("found %v, %v, want an error with %q", keys, err, test.reason)
				}
			case err != nil || len(keys) != 1 || keys[0] != maps.OptoutKey{Id: cookie(t, ns), Kind: maps.OptoutNetns}:
				t.Errorf("found %v, %v, want %d", keys, err, cookie(t, ns))
			}
		})
	}
}

// The agent has few capabilities, and none to look into namespaces.
func TestCNIWithTheAgentsCapabilities(t *testing.T) {
	rig.Root(t)
	r := newRuntime(t)
	r.bind("cni-1", rig.NewNetns(t, "pod"))
	r.write("net-c1-eth0", result(web(), "/run/netns/cni-1"))
	var found []maps.OptoutKey
	var tells bool
	if err := limited.Do(func() (err error) {
		if err := limited.Check(); err != nil {
			return err
		}
		var c *CNI
		if c, tells = newCNI(t, r); tells {
			c.Refresh()
			found, err = c.Find(web())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if tells && len(found) != 1 {
		t.Errorf("found %v", found)
	}
}

// The directories may contain anything. None of it may be opened as if it were what it should be,
// or keep the agent from finding the rest.
func TestCNIHostileFiles(t *testing.T) {
	rig.Root(t)
	r := newRuntime(t)
	r.bind("cni-1", rig.NewNetns(t, "pod"))
	c, tells := newCNI(t, r)
	if !tells {
		return
	}
	huge := result(web(), "/run/netns/cni-1")
	huge["config"] = strings.Repeat("A", 2*maxResult)
	r.write("huge", huge)
	r.write("broken", `{"kind": "cniCacheV1", "netns": `)
	r.write("empty", "")
	r.write("deep", strings.Repeat("[", 1<<20))
	r.write("other", `{"kind": "cniCacheV9"}`)
	r.write("list", `[1, 2]`)
	r.write("wrong", `{"kind": "cniCacheV1", "cniArgs": [["K8S_POD_NAME"], [], ["a", "b", "c"]], "result": {"interfaces": [{}]}}`)
	for name, path := range map[string]string{"dir": "", "link": "broken", "loop": "loop", "zero": "/dev/zero"} {
		path, name := path, filepath.Join(r.results, name)
		err := os.Mkdir(name, 0o700)
		if path != "" {
			err = errors.Join(os.Remove(name), os.Symlink(path, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(r.results, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(path string) error{
		"fifo": func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link": func(path string) error { return os.Symlink("cni-1", path) },
		"file": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"host": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""))
		},
		"uts": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), unix.Mount("/proc/self/ns/uts", path, "", unix.MS_BIND, ""))
		},
	} {
		path := filepath.Join(r.netns, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
		r.write("net-c1-eth0", result(web(), "/run/netns/"+name))
		c.Refresh()
		if keys, err := c.Find(web()); !errors.Is(err, ErrUnknown) {
			t.Errorf("namespace %s: found %v, %v", name, keys, err)
		}
	}
	r.write("net-c1-eth0", result(web(), "/run/netns/cni-1"))
	c.Refresh()
	if keys, err := c.Find(web()); err != nil || len(keys) != 1 {
		t.Errorf("with hostile files around: found %v, %v", keys, err)
	}
}

// A half-written file is read again when it changes, an unchanged one is not, and a removed one is
// forgotten.
func TestCNIFollowsFiles(t *testing.T) {
	rig.Root(t)
	r := newRuntime(t)
	r.bind("cni-1", rig.NewNetns(t, "first"))
	r.bind("cni-2", rig.NewNetns(t, "second"))
	c, tells := newCNI(t, r)
	if !tells {
		return
	}
	expect := func(when string, want int) {
		t.Helper()
		c.Refresh()
		if keys, _ := c.Find(web()); len(keys) != want {
			t.Errorf("%s: found %v, want %d", when, keys, want)
		}
	}
	expect("nothing", 0)
	r.write("net-c1-eth0", "")
	expect("half-written", 0)
	r.write("net-c1-eth0", result(web(), "/run/netns/cni-1"))
	expect("written", 1)
	was := c.known["net-c1-eth0"]
	expect("unchanged", 1)
	if c.known["net-c1-eth0"] != was {
		t.Error("Refresh read an unchanged file again")
	}
	r.write("net-c2-eth0", result(web(), "/run/netns/cni-2"))
	expect("a second sandbox", 2)
	if err := os.Remove(filepath.Join(r.results, "net-c1-eth0")); err != nil {
		t.Fatal(err)
	}
	expect("the first has gone", 1)
	if err := os.RemoveAll(r.results); err != nil {
		t.Fatal(err)
	}
	expect("without the directory", 0)
}

func FuzzCNI(f *testing.F) {
	encoded, err := json.Marshal(result(web(), "/run/netns/cni-1"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encoded)
	f.Add([]byte(`{"kind":"cniCacheV1","cniArgs":[["K8S_POD_UID"]],"result":{"interfaces":null}}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		a := &attachment{}
		if err := a.parse(content); err != nil {
			return
		}
		n := namespaces{dir: t.TempDir()}
		if id, err := n.cookie(a.netns); err == nil {
			t.Errorf("%q has the cookie %d", a.netns, id)
		}
	})
}
