// Package upkeep puts a cluster through its life: agents are installed with the chart, changed,
// lost, left without an API server and removed, while requests are sent from everywhere, and within
// one node past TCP. None may fail.
package upkeep

import (
	"bufio"
	"bytes"
	"debug/buildinfo"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
	"fairlead.io/fairlead/test/snapshot"
)

//go:embed workload.yaml
var workload string

//go:embed late.yaml
var late string

var (
	thorough = flag.Bool("thorough", false, "switch eight values of the chart instead of one, delete agents 20 times, and do without the API server for five minutes")
	family   = flag.String("family", "ipv4", "IP family of the cluster: ipv4, dual or ipv6")
)

// change is a value of the chart and the option that it sets.
type change struct{ set, option, value string }

// changes returns what may change under load. The routing is not part of it: nodes with different
// ones do not reach each other's pods, and the tunnel takes its address along when it goes.
func changes() []change {
	all := []change{
		{"loadBalancer.algorithm=maglev", "algorithm", "maglev"},
		{"loadBalancer.mode=dsr", "dsr", "ipip"},
		{"loadBalancer.dsrDispatch=geneve", "dsr", "geneve"},
		{"hostRouting=stack", "host-routing", "stack"},
		{"loadBalancer.acceleration=disabled", "xdp", "off"},
		{"socketLB.terminatePodConnections=true", "reset-stale-tcp", "true"},
		{"bigTCP=true", "big-tcp", "true"},
		{"sockmap.selector=app=nothing", "accelerate-selector", "app=nothing"},
	}
	if *thorough {
		return all
	}
	return all[:1]
}

// makeImage builds the agent's image. With a build tag, which its programs record and which becomes
// its name's tag, it is another image of the same code.
func (f *fixture) makeImage(dir, tag string) {
	f.t.Helper()
	image := exec.Command("go", "run", "./deploy/image", "-arch="+runtime.GOARCH, "-output="+dir)
	image.Dir = root
	if tag != "" {
		image.Args = append(image.Args, "-name=fairlead.io/fairlead:"+tag)
		image.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -tags="+tag)
	}
	if out, err := image.CombinedOutput(); err != nil {
		f.t.Fatalf("%v\n%s", err, out)
	}
}

// install installs the agent, or installs it again.
func (f *fixture) install(dir string, options ...string) {
	f.t.Helper()
	f.rig(nil, append([]string{"install", "-prefix", f.Prefix, "-chart", "charts/fairlead", "-image", dir + "/fairlead.tar"}, options...)...)
}

func TestUpkeep(t *testing.T) {
	dir := t.TempDir()
	f := newFixture(t, "-family", *family, "-cni", "none") // with nothing that connects pods or serves Services
	f.makeImage(dir, "")
	f.makeImage(dir+"/"+otherTag, otherTag)
	before := f.snapshots()
	refused := rig.LacksMapIterators()
	if refused == "" {
		f.install(dir, "-set", "metrics.address=:10249,sockmap.enabled=true")
	} else {
		t.Logf("connections stay with TCP: %s", refused)
		f.install(dir, "-set", "metrics.address=:10249")
	}
	f.rig(nil, "import", "-prefix", f.Prefix, dir+"/"+otherTag+"/fairlead.tar")
	f.apply(workload)
	f.mustAsk("rollout", "status", "daemonset/echo", waitFlag)
	f.mustAsk("wait", "--for=condition=Ready", "pod/client", waitFlag)
	requests := f.startSources()
	run := func(name string, fn func(f *fixture)) {
		t.Run(name, func(t *testing.T) {
			g := *f
			g.t = t
			fn(&g)
			requests.check(&g)
			if refused == "" {
				g.awaitPastTCP(len(g.Family.Services()))
			}
		})
	}
	run("nothing", func(*fixture) {}) // requests must succeed without any change
	run("Prometheus", func(f *fixture) { f.seen(func(expr string) bool { return !optional.MatchString(expr) }, 50) })
	run("upgrade", (*fixture).upgrade)
	run("rollback", (*fixture).rollback)
	run("agents deleted", (*fixture).deleteAgents)
	run("no API server", (*fixture).withoutAPIServer)
	run("node rebooted", func(f *fixture) { f.reboot(requests) })
	requests.stop()
	t.Run("uninstall", func(t *testing.T) {
		g := *f
		g.t = t
		g.uninstall()
		g.requireAsBefore(before)
	})
}

// isOfNoAgent reports whether a line about a node may differ regardless of agents: a rebooted node
// has a device with another hardware address, and a link-local address derived from it.
func isOfNoAgent(line string) bool {
	return strings.Contains(line, "fe80::") && !strings.Contains(line, "fe80::/") || slices.Contains(filesOfKernel(), line)
}

// filesOfKernel are what the kernel puts into a BPF file system. The one that the agents mount
// stays.
func filesOfKernel() []string {
	return []string{"file /sys/fs/bpf/maps.debug", "file /sys/fs/bpf/progs.debug"}
}

func (f *fixture) apply(manifests string) {
	f.t.Helper()
	f.rig(strings.NewReader(manifests), "kubectl", "-prefix", f.Prefix, "--", "apply", "--filename=-")
}

// otherTag is the tag of the image that the agents are upgraded to.
const otherTag = "other"

// upgrade changes to another image and switches features one after another on a working cluster, as
// a user would. The agents are replaced one node at a time.
func (f *fixture) upgrade() {
	f.requireTag("")
	for _, c := range changes() {
		f.helm("upgrade", "--namespace=kube-system", "--reuse-values", "--set=image.digest=,image.tag="+otherTag, "--set="+c.set, "fairlead", "charts/fairlead")
		f.agents()
		f.requireTag(otherTag)
		if is := f.option(c.option); is != c.value {
			f.t.Errorf("with %s the agents have %s=%s", c.set, c.option, is)
		}
	}
}

// rollback returns to the first revision, and so to the first image.
func (f *fixture) rollback() {
	f.helm("rollback", "--namespace=kube-system", "fairlead", "1")
	f.agents()
	f.requireTag("")
	for _, c := range changes() {
		if is := f.option(c.option); is == c.value {
			f.t.Errorf("after the rollback, the agents still have %s=%s", c.option, is)
		}
	}
}

// requireTag checks that the agents that run are of the image with a build tag, as their programs
// record it.
func (f *fixture) requireTag(want string) {
	f.t.Helper()
	for _, name := range f.Names() {
		info, err := buildinfo.ReadFile(fmt.Sprintf("/proc/%d/exe", f.agent(name)))
		if err != nil {
			f.t.Fatal(err)
		}
		tag := ""
		for _, s := range info.Settings {
			if s.Key == "-tags" {
				tag = s.Value
			}
		}
		if tag != want {
			f.t.Errorf("the agent of %s was built with the tag %q, want %q", name, tag, want)
		}
	}
}

func (f *fixture) deleteAgents() {
	times := 2
	if *thorough {
		times = 20
	}
	for i := range times {
		f.mustAsk("--namespace=kube-system", "delete", "pod", "--selector=app.kubernetes.io/name=fairlead", "--field-selector=spec.nodeName="+f.Names()[i%f.Nodes])
		f.agents()
	}
}

// withoutAPIServer restarts agents while no API server runs, and adds and deletes pods as soon as
// it is back.
func (f *fixture) withoutAPIServer() {
	f.rig(nil, "apiserver", "-prefix", f.Prefix, "stop")
	for _, name := range f.Names() {
		f.restartAgent(name)
	}
	if *thorough {
		time.Sleep(5 * time.Minute)
	}
	f.rig(nil, "apiserver", "-prefix", f.Prefix, "start")
	f.mustAsk("delete", "pod", "leaving", "--wait=false")
	f.apply(late)
	f.mustAsk("wait", "--for=condition=Ready", "pod/late", waitFlag)
	f.await("the new Service serves", func() error {
		_, err := f.ask("exec", "client", "--", "/agnhost", "connect", "--timeout=5s", "late.default.svc.cluster.local:80")
		return err
	})
	f.mustAsk("wait", "--for=delete", "pod/leaving", waitFlag)
	f.agents()
}

// reboot reboots a node that receives requests. While it is down, only requests that lead through it
// may fail. Once it is back, everything must work as before: its pods have networks again, and no
// state from before the reboot disturbs anyone.
func (f *fixture) reboot(requests sources) {
	const name = "node2"
	f.rig(nil, "reboot", "-prefix", f.Prefix, name)
	f.await(name+" has a live agent", func() error {
		if f.agent(name) == 0 {
			return errors.New("no agent")
		}
		return f.lives(name)
	})
	f.agents()
	f.mustAsk("rollout", "status", "daemonset/echo", waitFlag)
	f.mustAsk("wait", "--for=condition=Ready", "node/"+name, waitFlag)
	var all, staying struct{ sent, failed int }
	f.await("requests no longer fail after "+name+" is back", func() (bad error) {
		for _, y := range requests.tallies(f) {
			all.sent, all.failed = all.sent+y.Requests+y.Held, all.failed+y.Failed
			if strings.Contains(y.Target, onNode1) {
				staying.sent, staying.failed = staying.sent+y.Requests+y.Held, staying.failed+y.Failed
			}
			if y.Failed > 0 || y.Requests == 0 || y.Held == 0 {
				bad = errors.New(y.String())
			}
		}
		return bad
	})
	f.t.Logf("until %s was back, %d of %d requests failed", name, all.failed, all.sent)
	if staying.failed > 0 || staying.sent == 0 {
		f.t.Errorf("%d of the %d requests failed that need no other node than node1", staying.failed, staying.sent)
	}
}

// restartAgent kills the agent of a node, and waits until its kubelet has started another one that
// is live.
func (f *fixture) restartAgent(node string) {
	f.t.Helper()
	old := f.agent(node)
	if old == 0 {
		f.t.Fatalf("%s has no agent", node)
	}
	if err := unix.Kill(old, unix.SIGKILL); err != nil {
		f.t.Fatal(err)
	}
	f.await("a new agent is live on "+node, func() error {
		if pid := f.agent(node); pid == 0 || pid == old {
			return errors.New("no new agent")
		}
		return f.lives(node)
	})
}

// lives performs the liveness probe of a node's agent, as the kubelet does.
func (f *fixture) lives(node string) error {
	var conn net.Conn
	if err := f.Netns(node).Do(func() (err error) { conn, err = net.DialTimeout("tcp", "127.0.0.1:10247", patience); return err }); err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /livez HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// uninstall follows the chart's instructions for users, on a cluster whose pods are gone.
func (f *fixture) uninstall() {
	f.mustAsk("delete", "daemonset,service", "echo", waitFlag)
	f.mustAsk("delete", "service", "stays", waitFlag)
	f.mustAsk("delete", "pod", "client", "late", "leaving", "stays", "--ignore-not-found", waitFlag)
	f.mustAsk("--namespace=kube-system", "scale", "deployment/coredns", "--replicas=0")
	f.mustAsk("--namespace=kube-system", "wait", "--for=delete", "pod", "--selector=k8s-app=kube-dns", waitFlag)
	f.mustAsk("wait", "--for=delete", "pod", "--selector=app=echo", waitFlag)
	f.helm("upgrade", "--namespace=kube-system", "--reuse-values", "--set=cleanup=true", "--wait", "--wait-for-jobs", "--timeout=3m", "fairlead", "charts/fairlead")
	f.helm("uninstall", "--namespace=kube-system", "--wait", "fairlead")
}

// requireAsBefore checks that the agents have left the nodes as they were.
func (f *fixture) requireAsBefore(before map[string][]string) {
	f.t.Helper()
	after := f.snapshots()
	for _, lines := range []map[string][]string{before, after} {
		for name := range lines {
			lines[name] = slices.DeleteFunc(lines[name], isOfNoAgent)
		}
	}
	if diff := cmp.Diff(before, after); diff != "" {
		f.t.Errorf("state of the nodes (-before +after):\n%s", diff)
	}
}

// snapshots returns the state of each node.
func (f *fixture) snapshots() map[string][]string {
	f.t.Helper()
	self, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	all := map[string][]string{}
	for _, name := range f.Names() {
		at, err := f.Node(name)
		if err != nil {
			f.t.Fatal(err)
		}
		var out bytes.Buffer
		cmd := exec.Command(self, "snapshot", f.Cgroup(name))
		cmd.Stdout, cmd.Stderr = &out, os.Stderr
		if err := at.Run(cmd); err != nil {
			f.t.Fatal(err)
		}
		var lines []string
		if err := json.Unmarshal(out.Bytes(), &lines); err != nil {
			f.t.Fatal(err)
		}
		all[name] = lines
	}
	return all
}

// printSnapshot prints the state of the node that it runs on.
func printSnapshot(cgroup string) int {
	lines, err := snapshot.Take(snapshot.Places{
		Cgroup: cgroup, Dirs: []string{"/sys/fs/bpf", "/run/fairlead", "/etc/cni", "/opt/cni", "/run/netns"},
	})
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(lines)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
