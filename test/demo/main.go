// Command demo shows the agent's main job on this machine: an agent on YAML files balances a
// client's connections over three backends and loses one of them, and no request fails. It makes
// its own namespaces, cgroup and bpffs, and leaves nothing behind.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fairlead.io/fairlead/test/rig"
)

const (
	vip4 = "10.96.0.10:80"
	vip6 = "[fd96::10]:80"
)

const intro = `This demo runs a fairlead agent on this machine. It creates two network namespaces, a cgroup and a BPF
file system, and removes them at the end. It needs no Kubernetes: the agent reads a Service from a YAML file.

  one namespace is a node      a client that opens TCP connections, in the cgroup with the agent's BPF programs
  the other has its backends   backend-11, backend-12 and backend-13: three servers that answer with their names,
                               at 10.1.0.11 to 10.1.0.13 and fd01::11 to fd01::13, port 8080

The Service is shop/web, with the addresses 10.96.0.10:80 and [fd96::10]:80. No device has these addresses. When the
client connects to one of them, a BPF program picks a backend, and the kernel connects the client to that.`

func main() {
	if code, ok := (rig.Funcs{"client": client}).Dispatch(os.Args); ok {
		os.Exit(code)
	}
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: demo FAIRLEAD-BINARY")
		os.Exit(2)
	}
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "demo: needs root, for network namespaces and BPF programs")
		os.Exit(1)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// client dials ADDRESS COUNT times and prints a line for each request: the backend that answered
// and the peer that the socket reports, or the error. A third argument is a pause between two
// requests.
func client(args []string) int {
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return 2
	}
	var pause time.Duration
	if len(args) > 2 {
		if pause, err = time.ParseDuration(args[2]); err != nil {
			return 2
		}
	}
	for range count {
		fmt.Println(request(args[0]))
		time.Sleep(pause)
	}
	return 0
}

func request(address string) string {
	conn, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err != nil {
		return "failed " + err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	answer, err := io.ReadAll(conn)
	if err != nil {
		return "failed " + err.Error()
	}
	return string(answer) + " " + conn.RemoteAddr().String()
}

// demo is everything the demo runs on; undo tears it down, last first.
type demo struct {
	fairlead string
	dir      string
	bpffs    string
	cgroup   *rig.Cgroup
	host     *rig.Netns
	agent    *exec.Cmd
	undo     []func() error
}

func run(fairlead string) (err error) {
	s := &demo{fairlead: fairlead}
	defer func() { err = errors.Join(err, s.close()) }()
	start := time.Now()
	fmt.Println(intro)
	for _, step := range []func() error{
		s.build, s.startAgent, s.spread, s.peer, s.remove, s.browse,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	fmt.Printf("\nDone in %.0f s. Nothing is left behind.\n", time.Since(start).Seconds())
	return nil
}

func (s *demo) later(f func() error) { s.undo = append(s.undo, f) }

func (s *demo) close() error {
	var err error
	for _, f := range slices.Backward(s.undo) {
		err = errors.Join(err, f())
	}
	return err
}

// build makes a host with the client, and a namespace with three backends, connected by a veth
// pair.
func (s *demo) build() error {
	var err error
	if s.dir, err = os.MkdirTemp("", "fairlead-demo-"); err != nil {
		return err
	}
	s.later(func() error { return os.RemoveAll(s.dir) })
	var unmount func() error
	if s.bpffs, unmount, err = rig.MountBPFFS(); err != nil {
		return err
	}
	s.later(unmount)
	if s.cgroup, err = rig.CreateCgroup(); err != nil {
		return err
	}
	s.later(s.cgroup.Close)
	if s.host, err = rig.CreateNetns("demo-host"); err != nil {
		return err
	}
	s.later(s.host.Close)
	pods, err := rig.CreateNetns("demo-pods")
	if err != nil {
		return err
	}
	s.later(pods.Close)
	if err := rig.ConnectVeth(s.host, "pods", pods, "host"); err != nil {
		return err
	}
	for _, prefix := range []string{"10.1.0.1/24", "fd01::1/64"} {
		if err := s.host.AddAddr("pods", netip.MustParsePrefix(prefix)); err != nil {
			return err
		}
	}
	for _, name := range []string{"11", "12", "13"} {
		for _, addr := range []string{"10.1.0." + name, "fd01::" + name} {
			if err := s.serve(pods, addr, "backend-"+name); err != nil {
				return err
			}
		}
	}
	manifests, err := os.ReadFile("test/demo/manifests/web.yaml")
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(s.dir, "services"), 0o755); err != nil {
		return err
	}
	return s.write(string(manifests))
}

// serve answers every connection to addr with the backend's name.
func (s *demo) serve(ns *rig.Netns, addr, name string) error {
	prefix := netip.MustParseAddr(addr)
	bits := 24
	if prefix.Is6() {
		bits = 64
	}
	if err := ns.AddAddr("host", netip.PrefixFrom(prefix, bits)); err != nil {
		return err
	}
	return ns.Do(func() error {
		l, err := net.Listen("tcp", net.JoinHostPort(addr, "8080"))
		if err != nil {
			return err
		}
		s.later(l.Close)
		go rig.Serve(l, func(conn net.Conn) { _, _ = io.WriteString(conn, name) })
		return nil
	})
}

func (s *demo) write(manifests string) error {
	// Rename it into place, so that the agent never reads half of it.
	if err := os.WriteFile(filepath.Join(s.dir, "web.yaml"), []byte(manifests), 0o644); err != nil {
		return err
	}
	return os.Rename(filepath.Join(s.dir, "web.yaml"), filepath.Join(s.dir, "services", "web.yaml"))
}

// command returns a fairlead command for the demo's agent.
func (s *demo) command(args ...string) *exec.Cmd {
	return exec.Command(s.fairlead, append(args, "--bpffs="+s.bpffs, "--state-dir="+filepath.Join(s.dir, "run"))...)
}

// announce prints what the demo does next, and why.
func announce(number int, text string) { fmt.Printf("\n%d. %s\n\n", number, text) }

func (s *demo) show(args ...string) error {
	fmt.Printf("$ fairlead %s\n", strings.Join(args, " "))
	cmd := s.command(args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

// status waits for the agent, and prints those lines of its status that say something to somebody
// who sees it for the first time. It prints all of them if something is wrong.
func (s *demo) status() error {
	fmt.Println("$ fairlead status --wait --wait-duration=20s")
	cmd := s.command("status", "--wait", "--wait-duration=20s")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	for line := range strings.Lines(string(out)) {
		word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if err != nil || slices.Contains([]string{"node", "source", "services", "reconcile", "datapath", "healthy"}, word) {
			fmt.Print(line)
		}
	}
	return err
}

func (s *demo) startAgent() error {
	announce(1, "Start the agent, and wait until it is ready. It reads the Service, writes it into BPF maps, and\n"+
		"attaches BPF programs to the cgroup. (Only some lines of the status are shown.)")
	fmt.Println("$ fairlead agent --source=services &")
	s.agent = s.command("agent", "--source="+filepath.Join(s.dir, "services"), "--cgroup-root="+s.cgroup.Path(),
		"--node-name=demo", "--log-level=warn")
	s.agent.Stdout, s.agent.Stderr = os.Stderr, os.Stderr
	s.agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.agent.Start(); err != nil {
		return err
	}
	s.later(func() error { return s.command("cleanup").Run() })
	s.later(func() error {
		_ = s.agent.Process.Signal(syscall.SIGTERM)
		return s.agent.Wait()
	})
	if err := s.status(); err != nil {
		return err
	}
	fmt.Println("\nThe Service counts as two, one for IPv4 and one for IPv6. \"healthy\" means that nothing is wrong.")
	return nil
}

// ask runs the client in the host's namespace, inside the cgroup that the programs are attached to.
func (s *demo) ask(args ...string) ([]string, error) {
	out, err := rig.RunChild(s.cgroup, s.host, "client", args...)
	return strings.Split(strings.TrimSpace(out), "\n"), err
}

func (s *demo) spread() error {
	announce(2, "Open 300 connections to each address of the Service, and count which backend answers. Each\n"+
		"connection picks one at random, so each backend gets about 100.")
	for _, vip := range []string{vip4, vip6} {
		lines, err := s.ask(vip, "300")
		if err != nil {
			return err
		}
		fmt.Printf("300 connections to %s:", vip)
		counts := count(lines)
		for _, backend := range []string{"backend-11", "backend-12", "backend-13"} {
			fmt.Printf("  %s %d", backend, counts[backend])
			if counts[backend] < 50 {
				return fmt.Errorf("%s got %d of 300 requests: %v", backend, counts[backend], counts)
			}
		}
		fmt.Println()
	}
	return nil
}

func count(lines []string) map[string]int {
	counts := map[string]int{}
	for _, line := range lines {
		counts[strings.Fields(line)[0]]++
	}
	return counts
}

func (s *demo) peer() error {
	announce(3, "Open one more, and ask the client's socket for its peer (getpeername). It must be the address\n"+
		"that the client asked for, not the backend's.")
	lines, err := s.ask(vip4, "1")
	if err != nil {
		return err
	}
	fields := strings.Fields(lines[0])
	fmt.Printf("%s answered. The peer is %s.\n", fields[0], fields[1])
	if fields[1] != vip4 {
		return fmt.Errorf("getpeername says %s, want %s", fields[1], vip4)
	}
	return nil
}

// remove removes an endpoint while requests go on, and checks that no request fails and that the
// endpoint gets no more of them.
func (s *demo) remove() error {
	const requests, before = 2000, 300
	announce(4, fmt.Sprintf("Open %d connections, one after the other, and remove backend-13 from the YAML file after\n"+
		"the first %d. None may fail, and backend-13 must get no more once the agent has read the file.", requests, before))
	manifests, err := os.ReadFile("test/demo/manifests/web.yaml")
	if err != nil {
		return err
	}
	asking, err := rig.StartChild(s.cgroup, s.host, "client", vip4, strconv.Itoa(requests), "500us")
	if err != nil {
		return err
	}
	defer asking.Kill()
	var lines []string
	last := 0
	for i := range requests {
		line, err := asking.ReadLine()
		if err != nil {
			return err
		}
		lines = append(lines, line)
		if strings.HasPrefix(line, "backend-13") {
			last = i + 1
		}
		if i == before {
			if err := s.write(strings.Replace(string(manifests), "- {addresses: [10.1.0.13]}\n", "", 1)); err != nil {
				return err
			}
		}
	}
	if err := asking.Wait(); err != nil {
		return err
	}
	counts := count(lines)
	fmt.Printf("%d of %d connections failed. The last one that backend-13 answered was number %d.\n",
		counts["failed"], requests, last)
	if counts["failed"] > 0 || counts["backend-13"] == 0 || last == requests {
		return fmt.Errorf("requests were lost or still went to the removed backend: %v, last at %d", counts, last)
	}
	return nil
}

func (s *demo) browse() error {
	announce(5, "Look at the Service. backend-13 was removed for IPv4 only: 2 backends are ready there, and 3 for IPv6.")
	if err := s.show("service", "list"); err != nil {
		return err
	}
	announce(6, "Look at the BPF map from which the programs pick. A Service has a slot for each backend; a connection\n"+
		"draws one of the Service's slots, and goes to the address in that slot.")
	return s.show("map", "dump", "slots")
}
