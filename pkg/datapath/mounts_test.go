package datapath

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// vip is a loopback address that nothing serves: without translation, a connect to it is refused at
// once.
var vip = netip.MustParseAddrPort("127.66.0.1:80")

func TestMain(m *testing.M) {
	child := func(run func([]string) error) func([]string) int {
		return func(args []string) int {
			if err := run(args); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			return 0
		}
	}
	os.Exit(rig.Main(m, rig.Funcs{
		"client": child(runClient), "check": child(runCheck), "idle": child(runIdle), "contained": child(rig.Contained),
		"serve": child(runServe), "dial": child(runDial), "agent": child(limitTo("limited")), "limited": child(runAgent),
		"growth": child(limitTo("grow")), "grow": child(runGrow),
	}))
}

// tally is a client's report: how many connects it tried, and the errors of those that failed.
type tally struct {
	Tried  int
	Failed []string
}

// runClient connects to the VIP until its standard input ends. It prints a line after the first
// attempt and its tally at the end.
func runClient([]string) error {
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	var result tally
	for {
		select {
		case <-stop:
			return json.NewEncoder(os.Stdout).Encode(result)
		default:
		}
		conn, err := net.Dial("tcp", vip.String())
		if result.Tried++; err != nil {
			result.Failed = append(result.Failed, err.Error())
		} else {
			// Reset the connection, so that a long loop does not run out of ports.
			_ = conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
		}
		if result.Tried == 1 {
			fmt.Println("started")
		}
	}
}

// limitTo returns a function that executes the named child with only the capabilities that an agent
// has in a cluster.
func limitTo(name string) func([]string) error {
	return func(args []string) error {
		runtime.LockOSThread() // the new program's capabilities depend on the thread that executes it
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			if c == unix.CAP_BPF || c == unix.CAP_NET_ADMIN || c == unix.CAP_PERFMON {
				continue
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				return err
			}
		}
		return unix.Exec("/proc/self/exe", append([]string{os.Args[0], name}, args...), os.Environ())
	}
}

// runAgent starts like an agent, serves, grows once, and dies at the given step. Its arguments are
// the bpf filesystem, the cgroup, the backend and the step.
func runAgent(args []string) error {
	config := Config{BPFFS: args[0], CgroupRoot: args[1]}
	config.failpoint = func(step string) error {
		if step == args[3] {
			return errors.Join(unix.Kill(os.Getpid(), unix.SIGKILL), errors.New("survived"))
		}
		return nil
	}
	if err := checkLimited(); err != nil {
		return err
	}
	d, err := Open(config)
	if err != nil {
		return err
	}
	if !d.Adopted() {
		if err := d.Create(maps.Sizes{}); err != nil {
			return err
		}
	}
	if err := d.Attach(); err != nil {
		return err
	}
	backend, err := netip.ParseAddrPort(args[2])
	if err != nil {
		return err
	}
	if err := serve(d.Tables(), backend); err != nil {
		return err
	}
	sizes := d.Sizes()
	if err := d.Grow(maps.Sizes{
		Svcs: 2 * sizes.Svcs, Services: 2 * sizes.Services, Slots: 2 * sizes.Slots, Backends: 2 * sizes.Backends,
	}); err != nil {
		return err
	}
	return d.Close()
}

// checkLimited makes sure that the tests run with exactly the capabilities that an agent needs.
func checkLimited() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	const low, high = 1 << unix.CAP_NET_ADMIN, 1<<(unix.CAP_BPF-32) | 1<<(unix.CAP_PERFMON-32)
	if sets[0].Effective != low || sets[1].Effective != high {
		return fmt.Errorf("capabilities are %x %x", sets[1].Effective, sets[0].Effective)
	}
	return nil
}

// serve writes the rows of a service with one backend.
func serve(tables *maps.Tables, backend netip.AddrPort) error {
	tables.Backends[7] = maps.BackendOf(backend.Addr(), backend.Port(), model.TCP)
	tables.Slots[11] = maps.MakeSlot(7, 3, 1)
	tables.Services[3].Words[maps.ScopeAll] = uint64(maps.MakeWord(11, 1, 1))
	copy(tables.Names[3].Text[:], []int8{'x'})
	key := maps.KeyOf(vip.Addr(), vip.Port(), model.TCP)
	if _, ok, err := tables.Svcs.Lookup(key); err != nil || ok {
		return err
	}
	return tables.Svcs.Update(key, maps.Svc{Service: 3, Kind: maps.ClusterIP})
}

// mounts is a bpf filesystem and a cgroup for one test.
type mounts struct {
	Config
	cgroup  *rig.Cgroup
	backend netip.AddrPort
}

func newMounts(t *testing.T) mounts {
	t.Helper()
	rig.Root(t)
	bpffs, cgroup := rig.BPFFS(t), rig.NewCgroup(t)
	t.Cleanup(func() {
		if _, err := Cleanup(bpffs); err != nil {
			t.Error(err)
		}
	})
	p := mounts{cgroup: cgroup, Config: Config{
		BPFFS: bpffs, CgroupRoot: cgroup.Path(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	p.backend = listener.Addr().(*net.TCPAddr).AddrPort()
	return p
}

func open(t *testing.T, config Config) *Datapath {
	t.Helper()
	d, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// running returns a Datapath with one service.
func running(t *testing.T, p mounts) *Datapath {
	t.Helper()
	d := open(t, p.Config)
	if err := errors.Join(d.Create(maps.Sizes{}), d.Attach()); err != nil {
		t.Fatal(err)
	}
	if err := serve(d.Tables(), p.backend); err != nil {
		t.Fatal(err)
	}
	return d
}

// runAgent runs an agent that dies at the step if it gets there.
func (p mounts) runAgent(step string) error {
	_, err := rig.RunChild(nil, nil, "agent", p.BPFFS, p.CgroupRoot, p.backend.String(), step)
	return err
}

// client is a process in the cgroup that connects in a loop.
type client struct {
	*rig.Process
}

func startClient(t *testing.T, p mounts) client {
	t.Helper()
	c := client{rig.NewChild(t, p.cgroup, nil, "client")}
	if line, err := c.ReadLine(); err != nil || line != "started" {
		t.Fatalf("start client: %q, %v", line, err)
	}
	return c
}

// stop ends the client and returns its tally.
func (c client) stop(t *testing.T) tally {
	t.Helper()
	c.Stdin.Close()
	line, err := c.ReadLine()
	if err != nil {
		t.Fatalf("stop client: %v", err)
	}
	var result tally
	if err := errors.Join(json.Unmarshal([]byte(line), &result), c.Wait()); err != nil {
		t.Fatalf("stop client: %v", err)
	}
	return result
}

// connects reports whether a connect from the cgroup reaches the backend.
func connects(t *testing.T, p mounts) bool {
	t.Helper()
	return len(startClient(t, p).stop(t).Failed) == 0
}

// files lists the files below dir, except those that the kernel puts into every bpf filesystem.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if path != dir && filepath.Ext(path) != ".debug" {
			list = append(list, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// eventually waits for something that the kernel does some time after the call that caused it.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never saw: %s", what)
		}
	}
}
