package podnet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// sayBack is the other end of converse: it sends back what it receives.
func sayBack(args []string) int {
	config := net.ListenConfig{}
	config.SetMultipathTCP(false)
	listener, err := config.Listen(context.Background(), "tcp", ":"+args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go rig.Serve(listener, func(conn net.Conn) {
		piece := make([]byte, 64<<10)
		for {
			n, err := conn.Read(piece)
			if err != nil {
				return
			}
			if _, err := conn.Write(piece[:n]); err != nil {
				return
			}
		}
	})
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// converse opens one connection, and sends as many requests over it as each line of its input says.
func converse(args []string) int {
	conn, err := net.DialTimeout("tcp", args[0], patience)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer conn.Close()
	fmt.Println("ready")
	answers := bufio.NewReader(conn)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := askBack(conn, answers, lines.Text()); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("ok")
	}
	return 0
}

func askBack(conn net.Conn, answers io.Reader, line string) error {
	var times int
	if _, err := fmt.Sscan(line, &times); err != nil {
		return err
	}
	for i := range times {
		message := bytes.Repeat([]byte{byte(i), byte(i >> 8), 7}, 100)
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := conn.Write(message); err != nil {
			return err
		}
		got := make([]byte, len(message))
		if _, err := io.ReadFull(answers, got); err != nil || !bytes.Equal(got, message) {
			return fmt.Errorf("answer %d of %d: %v, as it was asked: %v", i, times, err, bytes.Equal(got, message))
		}
	}
	return nil
}

// oneNodeThreePods is a oneNodeWithAgent with three pods, some of which may bypass TCP.
type oneNodeThreePods struct {
	*oneNodeWithAgent
	pods map[string]*pod
}

// write writes a manifest of the pods with their annotations, and of more objects.
func (q *oneNodeThreePods) write(annotations map[string]string, more string) {
	q.t.Helper()
	var text strings.Builder
	for _, name := range []string{"a", "b", "c"} {
		fmt.Fprintf(&text, `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: shop, uid: uid-%[1]s, labels: {app: %[1]s}, annotations: {%[2]s}}
spec: {nodeName: node-a, containers: [{name: c, image: i}]}
status: {podIPs: [{ip: %[3]s}, {ip: "%[4]s"}]}
---`, name, annotations[name], q.pods[name].addr[true], q.pods[name].addr[false])
	}
	path := filepath.Join(q.files, "shop.yaml")
	q.must(os.WriteFile(path+".tmp", []byte(text.String()+more), 0o644))
	q.must(os.Rename(path+".tmp", path))
}

// listed is a connection as "fairlead sockmap list" lists it.
type listed struct {
	Client, ClientPod, Server, ServerPod, State, Reason string
	Redirected                                          [2]uint64
}

func (q *oneNodeThreePods) list() (rows []listed) {
	q.t.Helper()
	q.must(json.Unmarshal([]byte(q.run("sockmap", "list", "-o", "json")), &rows))
	return rows
}

// takesPart waits until the agent has told the programs about so many pods.
func (q *oneNodeThreePods) takesPart(pods int) {
	q.t.Helper()
	q.until(fmt.Sprintf("%d pods take part", pods), func() bool {
		return strings.Contains(q.statusText(), fmt.Sprintf("%d pods may take part", pods))
	})
}

// chat opens a connection from one pod to another; its client sends requests when ask tells it to.
func (q *oneNodeThreePods) chat(from, to string) *rig.Process {
	q.t.Helper()
	return q.dial(q.pods[from].Netns, q.pods[to].addr[true])
}

// dial opens a connection from a namespace to an address, like chat.
func (q *oneNodeThreePods) dial(from *rig.Netns, to netip.Addr) *rig.Process {
	q.t.Helper()
	return q.dialPort(from, netip.AddrPortFrom(to, 80).String())
}

func (q *oneNodeThreePods) dialPort(from *rig.Netns, to string) *rig.Process {
	q.t.Helper()
	p := rig.NewChild(q.t, q.cgroup, from, "converse", to)
	q.says(p, "ready")
	return p
}

// bypass asks until all connections that are listed are between the named ends and bypass TCP both ways.
func (q *oneNodeThreePods) bypass(connections []*rig.Process, client, server string) {
	q.t.Helper()
	q.until(fmt.Sprintf("%d connections from %s to %s bypass TCP", len(connections), client, server), func() bool {
		for _, p := range connections {
			q.ask(p, 10)
		}
		rows := q.list()
		return len(rows) == len(connections) && !slices.ContainsFunc(rows, func(r listed) bool {
			return r.ClientPod != client || r.ServerPod != server || r.State != "accelerated" || r.Redirected[0] == 0 || r.Redirected[1] == 0
		})
	})
}

func (q *oneNodeThreePods) says(p *rig.Process, want string) {
	q.t.Helper()
	if line, err := p.ReadLine(); err != nil || line != want {
		q.t.Fatalf("it says %q, %v", line, err)
	}
}

func (q *oneNodeThreePods) ask(p *rig.Process, times int) {
	q.t.Helper()
	_, err := fmt.Fprintln(p.Stdin, times)
	q.must(err)
	q.says(p, "ok")
}

// TestAccelerate checks that pods selected by annotation or by a policy bypass TCP and others do
// not, and that a change of that, or an operator's "off", takes effect at once.
func TestAccelerate(t *testing.T) {
	rig.Root(t)
	q := &oneNodeThreePods{oneNodeWithAgent: newOneNodeWithAgent(t, "--sockmap=true"), pods: map[string]*pod{}}
	for _, name := range []string{"a", "b", "c"} {
		q.pods[name] = q.pod(name)
		q.mustAdd(q.pods[name])
		q.says(rig.NewChild(t, q.cgroup, q.pods[name].Netns, "sayBack", "80"), "ready")
	}
	q.write(map[string]string{"a": `fairlead.io/accelerate: "true"`, "b": `fairlead.io/accelerate: "true"`}, "")
	q.takesPart(2)
	ab, cb := q.chat("a", "b"), q.chat("c", "b")
	q.ask(ab, 20)
	q.ask(cb, 20)
	q.bypass([]*rig.Process{ab}, "shop/a", "shop/b")

	q.run("sockmap", "off")
	before := q.list()[0].Redirected
	q.ask(ab, 20)
	if after := q.list()[0].Redirected; after != before || !strings.Contains(q.statusText(), "held: everything uses TCP") {
		t.Errorf("when it is off %v bytes have gone past TCP, and %v before\n%s", after, before, q.statusText())
	}
	q.run("sockmap", "on")
	q.until("they speak past TCP again", func() bool { q.ask(ab, 40); return q.list()[0].Redirected != before })

	q.restart()
	q.ready()
	before = q.list()[0].Redirected
	q.ask(ab, 20)
	if after := q.list()[0].Redirected; after == before {
		t.Error("behind the back of a new agent nothing goes past TCP any more")
	}

	q.write(map[string]string{"b": `fairlead.io/accelerate: "true"`}, `
apiVersion: fairlead.io/v1alpha1
kind: SocketAcceleration
metadata: {name: c-to-b, namespace: shop, uid: uid-policy}
spec: {from: [{podSelector: {matchLabels: {app: c}}}], to: [{podSelector: {matchLabels: {app: b}}}], ports: [80]}
`)
	q.until("the one is excluded whom nobody lets any more", func() bool { q.ask(ab, 1); return q.list()[0].Reason == "rules" })
	q.takesPart(2)
	cb = q.chat("c", "b")
	q.until("the policy lets another one", func() bool {
		q.ask(cb, 20)
		return slices.ContainsFunc(q.list(), func(r listed) bool { return r.ClientPod == "shop/c" && r.State == "accelerated" && r.Redirected[0] > 0 })
	})
	q.ask(ab, 20)

	q.kill()
	q.agents = []string{"--sockmap=false"}
	began := time.Now()
	q.start()
	past := func() (bytes uint64) {
		for _, r := range q.list() {
			bytes += r.Redirected[0] + r.Redirected[1]
		}
		return bytes
	}
	q.until("everything uses TCP, as the option says", func() bool { before := past(); q.ask(cb, 20); return past() <= before })
	// It takes less than a second where nothing else runs.
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the option takes effect %v after the agent's start", took)
	} else {
		t.Logf("after %v", took)
	}
}

// TestAccelerateUnproven checks that nothing bypasses TCP until "fairlead init" has proved that the
// kernel supports it, and that status says what to do.
func TestAccelerateUnproven(t *testing.T) {
	rig.Root(t)
	// init is not told about the program "another".
	h := newOneNodeWithAgent(t, "--sockmap=true", "--sockmap-except=nginx,haproxy,another")
	if text := h.statusText(); !strings.Contains(text, `run "fairlead init --sockmap=true"`) {
		t.Error(text)
	}
	if text := h.run("sockmap", "list"); strings.Count(text, "\n") != 1 {
		t.Error(text)
	}
}

// TestAccelerateByPackets checks that the two ends of a connection are recognized as one connection
// even if its packets are translated on their way, by IPv4 and IPv6, as they are when a pod that
// has opted out of socket load balancing dials a Service.
func TestAccelerateByPackets(t *testing.T) {
	rig.Root(t)
	cache := t.TempDir()
	q := &oneNodeThreePods{oneNodeWithAgent: newOneNodeWithAgent(t, "--sockmap=true", "--cni-cache="+cache), pods: map[string]*pod{}}
	for _, name := range []string{"a", "b", "c"} {
		q.pods[name] = q.pod(name)
		q.mustAdd(q.pods[name])
		q.note(name, cache)
		q.says(rig.NewChild(t, q.cgroup, q.pods[name].Netns, "sayBack", "80"), "ready")
	}
	services := `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "fd96::10"], ipFamilies: [IPv4, IPv6], ports: [{name: http, port: 8000}]}
`
	for is4, family := range map[bool]string{true: "IPv4", false: "IPv6"} {
		services += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-%[1]s, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: %[1]s
ports: [{name: http, port: 80}]
endpoints: [{addresses: ["%[2]s"], nodeName: node-a, conditions: {ready: true}}]
`, family, q.pods["b"].addr[is4])
	}
	const yes = `fairlead.io/accelerate: "true"`
	q.write(map[string]string{"a": yes + `, fairlead.io/socket-lb: "off"`, "b": yes, "c": yes}, services)
	q.takesPart(3)
	q.until("a pod has opted out", func() bool {
		return strings.Contains(q.statusText(), "opted out") && !strings.Contains(q.statusText(), "not covered")
	})
	for is4, to := range map[bool]string{true: "10.96.0.10:8000", false: "[fd96::10]:8000"} {
		a, c := q.dialPort(q.pods["a"].Netns, to), q.dialPort(q.pods["c"].Netns, to)
		q.until("both speak past TCP by "+to, func() bool {
			q.ask(a, 10)
			q.ask(c, 10)
			past := map[string]bool{}
			for _, r := range q.list() {
				server := netip.AddrPortFrom(q.pods["b"].addr[is4], 80).String()
				past[r.ClientPod] = past[r.ClientPod] || r.Server == server && r.State == "accelerated" && r.Redirected[0] > 0 && r.Redirected[1] > 0
			}
			return past["shop/a"] && past["shop/c"]
		})
		// Only packets of pod a have ever been addressed to the Service.
		if dialed := q.dialed("a"); !slices.Contains(dialed, to) {
			t.Errorf("the sockets of the pod that has opted out are connected to %v, and not to %s", dialed, to)
		}
		if dialed := q.dialed("c"); slices.Contains(dialed, to) {
			t.Errorf("the sockets of the other pod are connected to %v", dialed)
		}
	}
}

// dialed returns the addresses to which the kernel says that a pod's sockets are connected.
func (q *oneNodeThreePods) dialed(name string) (list []string) {
	q.t.Helper()
	q.must(q.pods[name].Netns.Do(func() error {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			sockets, err := netlink.SocketDiagTCP(family)
			if err != nil {
				return err
			}
			for _, s := range sockets {
				addr, _ := netip.AddrFromSlice(s.ID.Destination)
				list = append(list, netip.AddrPortFrom(addr.Unmap(), s.ID.DestinationPort).String())
			}
		}
		return nil
	}))
	return list
}
