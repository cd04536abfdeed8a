package podnet

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/test/rig"
)

// fairlead becomes the program at a path.
func fairlead(args []string) int {
	fmt.Fprintln(os.Stderr, unix.Exec(args[0], append([]string{"fairlead"}, args[1:]...), os.Environ()))
	return 1
}

// oneNodeWithAgent is a node with a whole agent, which reads objects from files, and a host outside.
type oneNodeWithAgent struct {
	*node
	cgroup  *rig.Cgroup
	outside *rig.Netns
	flags   []string // for every fairlead command
	agents  []string // more flags, for the agent
	files   string
	bpffs   string
	lacks   string // what this kernel lacks, which makes the agent report that the node is degraded
}

// newOneNodeWithAgent returns a node whose agent gets these flags too.
func newOneNodeWithAgent(t *testing.T, flags ...string) *oneNodeWithAgent {
	t.Helper()
	if slices.Contains(flags, "--sockmap=true") {
		rig.MapIterators(t)
	}
	h := &oneNodeWithAgent{files: t.TempDir(), bpffs: rig.BPFFS(t), agents: flags}
	if slices.Contains(flags, "--bandwidth=true") && lackingFq(t) != nil {
		h.lacks = "has no fq"
	}
	if slices.ContainsFunc(flags, func(flag string) bool { return strings.HasPrefix(flag, "--sockmap-except") }) {
		h.lacks = "been tested for these programs"
	}
	h.node = newNodeOf(t, func(n *node) {
		h.cgroup, h.outside = rig.NewCgroup(t), rig.NewNetns(t, "outside")
		rig.Veth(t, n.ns, "eth0", h.outside, "eth0")
		rig.Address(t, n.ns, "eth0", "198.51.100.1/24", "198.51.100.2/24", "2001:db8:1::1/64")
		rig.Address(t, h.outside, "eth0", "198.51.100.7/24", "2001:db8:1::7/64")
		h.flags = []string{"--bpffs=" + h.bpffs, "--state-dir=" + n.Dir}
		if slices.Contains(flags, "--sockmap=true") {
			// init makes its proof in the cgroup, whose programs see the proof's sockets.
			args := append([]string{filepath.Join(command.in(t), "fairlead"), "init", "--sockmap=true", "--devices=none", "--cgroup-root=" + h.cgroup.Path()}, h.flags...)
			rig.Child(t, h.cgroup, n.ns, "fairlead", args...)
		}
		for _, flag := range flags {
			if strings.HasPrefix(flag, "--bbr=") {
				n.must(n.ns.SetSysctl("net/ipv4/tcp_congestion_control", "reno")) // whatever it is on this machine
				args := append([]string{filepath.Join(command.in(t), "fairlead"), "init", flag, "--devices=none", "--cgroup-root=" + h.cgroup.Path()}, h.flags...)
				rig.Child(t, nil, n.ns, "fairlead", args...)
			}
		}
		n.whole = func() *rig.Process {
			args := append([]string{
				filepath.Join(command.in(t), "fairlead"), "agent", "--source=" + h.files, "--cgroup-root=" + h.cgroup.Path(), "--node-name=node-a",
				"--pod-network=main", "--pod-cidrs=10.1.0.0/24,fd00:1::/64", "--devices=eth0", "--xdp=off", "--log-level=warn",
			}, append(slices.Clone(h.agents), h.flags...)...)
			return rig.NewChild(t, nil, n.ns, "fairlead", args...)
		}
	}, "10.1.0.0/24", "fd00:1::/64")
	h.ready()
	return h
}

// metricsAddress is where an agent publishes its metrics, if told to.
const metricsAddress = "127.0.0.1:10247"

// get sends an HTTP request to the agent, as a kubelet does.
func (h *oneNodeWithAgent) get(path string) (answer string) {
	h.t.Helper()
	h.must(h.ns.Do(func() error {
		conn, err := net.DialTimeout("tcp", metricsAddress, patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", path); err != nil {
			return err
		}
		text, err := io.ReadAll(conn)
		answer = string(text)
		return err
	}))
	return answer
}

// ready waits until the agent has taken over.
func (h *oneNodeWithAgent) ready() {
	h.t.Helper()
	if h.lacks == "" {
		h.run("status", "--wait", "--wait-duration=60s")
		return
	}
	h.until("nothing is wrong but that this kernel "+h.lacks, func() bool {
		_, wrong, found := strings.Cut(h.statusText(), "degraded:\n")
		return found && !slices.ContainsFunc(strings.Split(strings.TrimSpace(wrong), "\n"), func(line string) bool { return !strings.Contains(line, h.lacks) })
	})
}

func (h *oneNodeWithAgent) until(what string, done func() bool) {
	h.t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("not in %v: %s\n%s", patience, what, h.statusText())
		}
	}
}

// statusText returns the status of a node that may be degraded.
func (h *oneNodeWithAgent) statusText() string {
	args := append([]string{filepath.Join(command.in(h.t), "fairlead"), "status"}, h.flags...)
	out, _ := rig.RunChild(nil, h.ns, "fairlead", args...) // the text says what is wrong
	return out
}

// run runs a fairlead command, and returns what it prints.
func (h *oneNodeWithAgent) run(args ...string) string {
	h.t.Helper()
	args = append([]string{filepath.Join(command.in(h.t), "fairlead")}, append(args, h.flags...)...)
	out, err := rig.RunChild(nil, h.ns, "fairlead", args...)
	if err != nil {
		h.t.Fatalf("fairlead %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// mapping returns an entry of the capability portMappings; the pod listens at port 7.
func mapping(host string, port any, protocol string) map[string]any {
	return map[string]any{"hostIP": host, "hostPort": port, "containerPort": 7, "protocol": protocol}
}

// harbored returns a pod that asks for ports of the node, and listens.
func (h *oneNodeWithAgent) harbored(id string, ports ...map[string]any) *pod {
	h.t.Helper()
	p := h.pod(id)
	p.caps = map[string]any{"portMappings": ports}
	listenIn(h.t, p.Netns)
	return p
}

// reach is a way to a port of the node, and the address that the pod must see: "" for any, because
// it is the node's own choice; refused if nothing is to answer.
type reach struct {
	from     *rig.Netns
	cgroup   *rig.Cgroup
	protocol string
	to       string
	seen     string
}

const refused = "refused"

func (h *oneNodeWithAgent) reach(when string, ways ...reach) {
	h.t.Helper()
	for _, way := range ways {
		protocol := way.protocol
		if way.seen == refused {
			protocol += "-refused"
		}
		got, err := rig.RunChild(way.cgroup, way.from, "dial", protocol, way.to)
		if err != nil || got != way.seen && way.seen != "" {
			h.t.Errorf("%s: %s to %s by %s is %q, %v; want %q", when, way.from, way.to, way.protocol, got, err, way.seen)
		}
	}
}

// TestHostPorts checks that host ports that the runtime asks for lead to the pod as soon as ADD
// returns, from wherever they may, that they work without the agent and with the next one, and that
// they end with the pod, however it ends.
func TestHostPorts(t *testing.T) {
	h := newOneNodeWithAgent(t)
	a := h.harbored("a", mapping("", 8080, "TCP"), mapping("198.51.100.2", 8081, "tcp"), mapping("127.0.0.1", 8082, "tcp"),
		mapping("::1", 8082, "tcp"), mapping("0.0.0.0", 30080, "tcp"))
	b := h.harbored("b", mapping("::", 8080, "udp"))
	caller := h.pod("caller")
	h.mustAdd(caller)
	open := []reach{
		{h.outside, nil, "tcp", "198.51.100.1:8080", "198.51.100.7"}, {h.outside, nil, "tcp", "198.51.100.2:8080", "198.51.100.7"},
		{h.outside, nil, "tcp", "[2001:db8:1::1]:8080", "2001:db8:1::7"}, {h.outside, nil, "tcp", "198.51.100.1:30080", "198.51.100.7"},
		{h.outside, nil, "tcp", "198.51.100.2:8081", "198.51.100.7"}, {h.outside, nil, "tcp", "198.51.100.1:8081", refused},
		{h.outside, nil, "tcp", "198.51.100.1:8082", refused},
		{h.ns, h.cgroup, "tcp", "127.0.0.1:8082", ""}, {h.ns, h.cgroup, "tcp", "[::1]:8082", ""}, {h.ns, h.cgroup, "tcp", "127.0.0.1:8080", ""},
		{h.ns, h.cgroup, "tcp", "198.51.100.1:8082", refused},
		{caller.Netns, h.cgroup, "tcp", "127.0.0.1:8082", refused}, {caller.Netns, h.cgroup, "tcp", "127.0.0.1:8080", refused},
		{caller.Netns, h.cgroup, "tcp", "198.51.100.1:8080", caller.addr[true].String()},
		{caller.Netns, h.cgroup, "tcp", "[2001:db8:1::1]:8080", caller.addr[false].String()},
	}
	datagrams := []reach{{h.outside, nil, "udp", "198.51.100.1:8080", "198.51.100.7"}, {h.outside, nil, "udp", "[2001:db8:1::1]:8080", "2001:db8:1::7"}}
	closed := []reach{{h.outside, nil, "tcp", "198.51.100.1:8080", refused}, {h.outside, nil, "tcp", "[2001:db8:1::1]:30080", refused}}

	h.reach("before", closed...)
	h.mustAdd(a)
	h.reach("after ADD", open...)
	h.mustAdd(b)
	h.reach("after ADD", datagrams...)
	if list := h.run("service", "list"); !strings.Contains(list, "pod:shop/a:0.0.0.0:8080/tcp") || !strings.Contains(list, "HostPort") {
		t.Errorf("service list has no host port:\n%s", list)
	}
	if text := h.run("explain", "198.51.100.7:4711", "198.51.100.1:8080"); !strings.Contains(text, a.addr[true].String()) {
		t.Errorf("explain does not lead to the pod:\n%s", text)
	}

	thief := h.harbored("thief", mapping("0.0.0.0", 8080, "tcp"))
	before := h.left()
	if _, err := h.add(thief); code(err) != cni.ErrPortTaken || !strings.Contains(err.Error(), "* port 8080/tcp of the node leads to shop/a") {
		t.Errorf("a second pod for the port is told %v", err)
	}
	if after := h.left(); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("of the pod that was refused there is left %q, before %q", after, before)
	}

	h.kill()
	h.reach("without the agent", open...)
	h.start()
	h.ready()
	h.reach("with the next", open...)
	h.reach("with the next", datagrams...)
	h.mustAdd(a) // again
	h.reach("after another ADD", open...)

	h.must(h.del(a))
	h.reach("after DEL", closed...)
	h.reach("after the other's DEL", datagrams...)
	h.mustAdd(thief)
	h.reach("the next pod's", reach{h.outside, nil, "tcp", "198.51.100.1:8080", "198.51.100.7"})
	h.must(h.collect(b, caller))
	h.reach("after GC", closed...)

	h.mustAdd(a)
	h.kill()
	h.must(h.ns.Do(func() error { return removeDevice(a) }))
	h.start()
	h.ready()
	h.reach("of a pod that went while the agent was away", closed...)
	if list := h.run("service", "list"); strings.Contains(list, "pod:shop/a:") {
		t.Errorf("service list has ports of a pod that is gone:\n%s", list)
	}
}

func removeDevice(p *pod) error {
	link, err := netlink.LinkByName(cni.Attachment{Network: "pods", Container: p.id, IfName: "eth0"}.Device())
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}

// TestHostileHostPorts checks that invalid port mappings are refused and leave nothing.
func TestHostileHostPorts(t *testing.T) {
	n := newNode(t, "10.1.0.0/24")
	for _, m := range []map[string]any{
		mapping("", 0, "tcp"), mapping("", 65536, "tcp"), mapping("", -1, "tcp"), mapping("", 80, "icmp"), mapping("", 80, ""),
		mapping("localhost", 80, "tcp"), mapping("fe80::1%eth0", 80, "tcp"), mapping("224.0.0.1", 80, "tcp"),
		{"hostPort": 80, "containerPort": 0, "protocol": "tcp"}, {"hostPort": 80, "protocol": "tcp"},
	} {
		p := n.pod("hostile")
		p.caps = map[string]any{"portMappings": []any{m}}
		if _, err := n.add(p); code(err) != 7 {
			t.Errorf("%v: %v", m, err)
		}
		n.nothingLeft()
	}
}
