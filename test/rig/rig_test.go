package rig

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	os.Exit(Main(m, Funcs{
		"where": where,
		"fail":  func([]string) int { fmt.Println("half"); fmt.Fprintln(os.Stderr, "the reason"); return 7 },
		"serve": serve,
		"dial":  dial,
		"fork":  func([]string) int { _, err := RunChild(nil, nil, "where"); fmt.Println(err); return 0 },
	}))
}

// where prints the cgroup, the network namespace and the arguments of the process.
func where(args []string) int {
	cgroups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for line := range strings.Lines(string(cgroups)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			fmt.Print(path)
		}
	}
	ns, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("%s\n%q\n", ns, args)
	return 0
}

// serve listens on an address, prints it, and echoes each line of one connection. It ends when its
// standard input is closed.
func serve(args []string) int {
	listener, err := net.Listen("tcp", args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(listener.Addr())
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			fmt.Fprintln(conn, lines.Text())
		}
	}()
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
	}
	return 0
}

// dial sends a word to an address and prints the answer.
func dial(args []string) int {
	conn, err := net.Dial("tcp", args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer conn.Close()
	fmt.Fprintln(conn, args[1])
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Print(answer)
	return 0
}

// fakeT records what a wrapper does to its test.
type fakeT struct {
	cleanups       []func()
	errors         []string
	fatal, skipped string
}

func (f *fakeT) Helper()           {}
func (f *fakeT) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }
func (f *fakeT) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}
func (f *fakeT) Fatalf(format string, args ...any) { f.fatal = fmt.Sprintf(format, args...) }
func (f *fakeT) Skipf(format string, args ...any)  { f.skipped = fmt.Sprintf(format, args...) }

func (f *fakeT) end() {
	for i := len(f.cleanups) - 1; i >= 0; i-- {
		f.cleanups[i]()
	}
}

func TestLacking(t *testing.T) {
	tests := []struct {
		name, require string
		want          fakeT
	}{
		{"nothing required", "", fakeT{skipped: "not run: there is none"}},
		{"something else required", "apiserver rooted", fakeT{skipped: "not run: there is none"}},
		{"required", "apiserver root", fakeT{fatal: "FAIRLEAD_REQUIRE asks for root, but there is none"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("FAIRLEAD_REQUIRE", tt.require)
			var have fakeT
			Lacking(&have, "root", "there is none")
			if diff := cmp.Diff(tt.want, have, cmp.AllowUnexported(fakeT{})); diff != "" {
				t.Errorf("(-want +have):\n%s", diff)
			}
		})
	}
}

func TestBPFFS(t *testing.T) {
	Root(t)
	NoLeaks(t)
	first, second := BPFFS(t), BPFFS(t)
	if first == second {
		t.Fatalf("both are %s", first)
	}
	for _, dir := range []string{first, second} {
		var stat unix.Statfs_t
		if err := unix.Statfs(dir, &stat); err != nil {
			t.Fatal(err)
		}
		if stat.Type != unix.BPF_FS_MAGIC {
			t.Errorf("%s is of type %#x", dir, stat.Type)
		}
	}
	if err := os.Mkdir(first+"/fairlead", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(second + "/fairlead"); !os.IsNotExist(err) {
		t.Errorf("a file made in one is visible in the other: %v", err)
	}
}

func TestParseMounts(t *testing.T) {
	const (
		tmpfs   = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
		memory  = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
		hybrid  = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
		unified = "28 25 0:25 / /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n"
		locked  = "29 25 0:25 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"
		blank   = `30 25 0:25 / /mnt/a\040b\134c rw - cgroup2 none rw` + "\n"
	)
	tests := []struct {
		name, mountinfo, want, err string
	}{
		{name: "unified", mountinfo: unified, want: "/sys/fs/cgroup"},
		{name: "hybrid", mountinfo: tmpfs + memory + hybrid, want: "/sys/fs/cgroup/unified"},
		{name: "read-only before writable", mountinfo: locked + hybrid, want: "/sys/fs/cgroup/unified"},
		{name: "path with a blank and a backslash", mountinfo: blank, want: `/mnt/a b\c`},
		{name: "only read-only", mountinfo: locked, err: "/sys/fs/cgroup is mounted read-only"},
		{name: "only the first version", mountinfo: tmpfs + memory, err: "not mounted"},
		{name: "nothing", err: "not mounted"},
		{name: "another form", mountinfo: "1 2 3\n", err: "another form"},
		{name: "cut after the dash", mountinfo: "1 2 0:1 / /x rw -\n", err: "another form"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mounts, err := parseMounts(tt.mountinfo)
			have := ""
			if err == nil {
				have, err = findCgroup2(mounts)
			}
			if have != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("have %q, %v; want %q, %q", have, err, tt.want, tt.err)
			}
		})
	}
}

// The check must notice each kind of object that can be left behind, and notice when it is gone.
func TestNoLeaksSeesLeaks(t *testing.T) {
	Root(t)
	tests := []struct {
		name string
		leak func(t *testing.T) (clean func())
		want string
	}{
		{"cgroup", func(t *testing.T) func() {
			c, err := CreateCgroup()
			if err != nil {
				t.Fatal(err)
			}
			return func() { check(t, c.Close()) }
		}, "cgroup /"},
		{"mount", func(t *testing.T) func() {
			_, unmount, err := MountBPFFS()
			if err != nil {
				t.Fatal(err)
			}
			return func() { check(t, unmount()) }
		}, "mount /"},
		{"namespace", func(t *testing.T) func() {
			n, err := CreateNetns("leak")
			if err != nil {
				t.Fatal(err)
			}
			return func() { check(t, n.Close()) }
		}, "open network namespace net:["},
		{"process", func(t *testing.T) func() {
			p, err := StartChild(nil, nil, "serve", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			return p.Kill
		}, "process "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			NoLeaks(t)
			var fake fakeT
			NoLeaks(&fake)
			clean := tt.leak(t)
			fake.end()
			clean()
			if len(fake.errors) != 1 || !strings.Contains(fake.errors[0], tt.want) {
				t.Errorf("have %q, want one with %q", fake.errors, tt.want)
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func TestParseStat(t *testing.T) {
	tests := []struct {
		stat, name string
		parent     int
		ok         bool
	}{
		{"12 (sleep) S 7 12 1", "(sleep)", 7, true},
		{"12 (a) R 9 (b) S 7 12 1", "(a) R 9 (b)", 7, true},
		{"", "", 0, false},
		{"12 (x) S", "", 0, false},
		{"12 )x( S 1", "", 0, false},
	}
	for _, tt := range tests {
		name, parent, ok := parseStat(tt.stat)
		if name != tt.name || parent != tt.parent || ok != tt.ok {
			t.Errorf("%q: have %q, %d, %t", tt.stat, name, parent, ok)
		}
	}
}
