package upkeep

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/apiserver/pinned"
	"fairlead.io/fairlead/test/cluster/image"
	"fairlead.io/fairlead/test/cluster/node"
	"fairlead.io/fairlead/test/rig"
)

var (
	//go:embed kubeadm.yaml
	nearClient string

	//go:embed kubelet.sh
	kubeletUnit string
)

// controlPlane lists the programs that kubeadm starts as pods, each from its own image.
func controlPlane() []string {
	return []string{"coredns", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
}

// TestKubeadm creates a cluster with kubeadm and installs the agent on it, using the commands of
// docs/quick-start.md. It only adds what nodes need that are namespaces of one machine.
func TestKubeadm(t *testing.T) {
	rig.Root(t)
	programs, err := pinned.Find(append(controlPlane(), "kubeadm", "kubectl", "kubelet")...)
	if err != nil {
		t.Fatal(err)
	}
	if missing := strings.Join(programs.Missing(), " "); missing != "" {
		rig.Lacking(t, "cluster", missing+" must be built first: go run ./test/cluster build "+missing)
	}
	k := &kubeadm{
		fixture: newFixture(t, "-family", "ipv4", "-cni", "none", "-bare"), programs: programs, guide: readGuide(t), dir: t.TempDir(),
	}
	k.bringPrograms()
	k.bringImages()
	k.start()
	k.installAgent()
	k.check()
	k.uninstallAgent()
}

// kubeadm is a cluster that kubeadm creates from bare nodes.
type kubeadm struct {
	*fixture
	programs *pinned.Set
	guide    []string // the commands of the quick start
	dir      string   // where these are run
}

// readGuide returns the commands of the quick start.
func readGuide(t *testing.T) (commands []string) {
	t.Helper()
	text, err := os.ReadFile(root + "/docs/quick-start.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", "")) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			commands = append(commands, strings.TrimPrefix(strings.TrimSpace(command), "$ "))
		}
	}
	return commands
}

// command returns the command of the quick start that starts with the given words.
func (k *kubeadm) command(begin string) string {
	k.t.Helper()
	found := slices.DeleteFunc(slices.Clone(k.guide), func(command string) bool { return !strings.HasPrefix(command, begin) })
	if len(found) != 1 {
		k.t.Fatalf("docs/quick-start.md has %d commands that begin with %q: %q", len(found), begin, found)
	}
	return found[0]
}

// on runs a command as root on a node, in the directory of the build results.
func (k *kubeadm) on(node, command string) string {
	k.t.Helper()
	where, err := k.Node(node)
	if err != nil {
		k.t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := k.shell(command)
	cmd.Stderr = &log
	out := new(bytes.Buffer)
	cmd.Stdout = out
	err = where.Run(cmd)
	k.t.Logf("%s# %s\n%s%s", node, command, out, log.String())
	if err != nil {
		k.t.Fatal(err)
	}
	return out.String()
}

func (k *kubeadm) shell(command string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir = k.dir
	cmd.Env = append(os.Environ(), "HOME="+k.dir, "KUBECONFIG=/etc/kubernetes/admin.conf", "PATH="+k.dir+"/bin:"+os.Getenv("PATH"))
	return cmd
}

// bringPrograms lets the nodes find the programs by name, among them the agent's, which is tried
// before there is a cluster, and the manifests of docs.
func (k *kubeadm) bringPrograms() {
	k.t.Helper()
	docs, err := filepath.Abs(root + "/docs")
	if err == nil {
		err = os.Symlink(docs, k.dir+"/docs")
	}
	if err != nil {
		k.t.Fatal(err)
	}
	k.makeImage(k.dir+"/_output/image", "")
	for _, args := range [][]string{
		{"build", "-o", k.dir + "/fairlead", "./cmd/fairlead"},
		{"tool", "-n", "-modfile=test/tools/helm/go.mod", "helm"},
	} {
		build := exec.Command("go", args...)
		build.Dir = root
		build.Stderr = os.Stderr
		out, err := build.Output()
		if err != nil {
			k.t.Fatal(err)
		}
		if args[0] == "tool" {
			k.link("helm", strings.TrimSpace(string(out)))
		}
	}
	for _, name := range []string{"kubeadm", "kubectl", "kubelet"} {
		k.link(name, k.program(name))
	}
}

func (k *kubeadm) link(name, program string) {
	k.t.Helper()
	if err := os.MkdirAll(k.dir+"/bin", 0o755); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Symlink(program, k.dir+"/bin/"+name); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kubeadm) program(name string) string {
	k.t.Helper()
	b, err := k.programs.Binary(name)
	if err != nil {
		k.t.Fatal(err)
	}
	return b.Path
}

// bringImages loads the agent's image onto every node, and the images that kubeadm asks for by
// name. There is none of kube-proxy.
func (k *kubeadm) bringImages() {
	k.t.Helper()
	of := map[string]string{}
	for name := range strings.FieldsSeq(k.on("node1", "kubeadm config images list --kubernetes-version="+k.programs.KubernetesVersion())) {
		if program, _, _ := strings.Cut(path.Base(name), ":"); slices.Contains(controlPlane(), program) {
			of[name] = k.program(program)
		}
	}
	if len(of) != len(controlPlane()) {
		k.t.Fatalf("kubeadm wants the images %q", slices.Collect(maps.Keys(of)))
	}
	archive := k.dir + "/control-plane.tar"
	if err := image.BuildControlPlane(archive, of); err != nil {
		k.t.Fatal(err)
	}
	k.rig(nil, "import", "-prefix", k.Prefix, archive, k.dir+"/_output/image/fairlead.tar")
}

// start creates the cluster with kubeadm. From then on the rig knows it.
func (k *kubeadm) start() {
	k.t.Helper()
	for _, name := range k.Names() {
		k.on(name, strings.TrimPrefix(k.command("ssh node1 sudo ./fairlead preflight"), "ssh node1 sudo "))
		k.layOut(name)
	}
	k.on("node1", k.command("kubeadm init")+k.flags("node1"))
	k.on("node2", strings.TrimSpace(k.on("node1", "kubeadm token create --print-join-command"))+k.flags("node2"))
	if err := os.WriteFile(k.Kubeconfig, []byte(k.on("node1", "cat /etc/kubernetes/admin.conf")), 0o600); err != nil {
		k.t.Fatal(err)
	}
}

// flags returns the flags that kubeadm needs for a node that consists of namespaces.
func (k *kubeadm) flags(name string) string {
	return " --patches=" + k.dir + "/" + name + " --ignore-preflight-errors=SystemVerification"
}

// layOut gives a node what a machine has before kubeadm runs: a resolver, without which CoreDNS does
// not start (nobody answers there), and a service that starts the kubelet.
func (k *kubeadm) layOut(name string) {
	k.t.Helper()
	patch, err := node.KubeletPatch("/" + filepath.Base(k.Cgroup(name)))
	if err != nil {
		k.t.Fatal(err)
	}
	if err := os.Mkdir(k.dir+"/"+name, 0o755); err != nil {
		k.t.Fatal(err)
	}
	if err := os.WriteFile(k.dir+"/"+name+"/kubeletconfiguration+merge.json", patch, 0o644); err != nil {
		k.t.Fatal(err)
	}
	k.on(name, fmt.Sprintf("echo nameserver %s >/etc/resolv.conf", k.Family.Router()[0].Addr()))
	where, err := k.Node(name)
	if err != nil {
		k.t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(k.Logs, name+"-kubelet.log"))
	if err != nil {
		k.t.Fatal(err)
	}
	defer log.Close()
	kubelet := k.shell(kubeletUnit)
	kubelet.Stdout, kubelet.Stderr = log, log
	if err := where.Start(kubelet); err != nil {
		k.t.Fatal(err)
	}
	go func() { _ = kubelet.Wait() }() // it ends with the node
}

// installAgent installs the agent with helm, and waits until the whole cluster works.
func (k *kubeadm) installAgent() {
	k.t.Helper()
	k.await("the nodes are there, and pods have no network", func() error { // kubeadm does not wait until the kubelet has registered its node
		states, err := k.ask("get", "nodes", `--output=jsonpath={.items[*].status.conditions[?(@.type=="Ready")].reason}`)
		if err == nil && states != "KubeletNotReady KubeletNotReady" {
			err = fmt.Errorf("they are %q", states)
		}
		return err
	})
	k.on("node1", k.command("helm install")+" --set 'extraArgs={--cgroup-root="+strings.TrimSuffix(k.Cgroup("node1"), "node1")+"$(NODE_NAME)}'")
	k.on("node1", k.command("kubectl -n kube-system rollout status")+" "+waitFlag)
	k.mustAsk("wait", "--for=condition=Ready", "nodes", "--all", waitFlag)
	k.mustAsk("--namespace=kube-system", "rollout", "status", "deployment/coredns", waitFlag)
	k.on("node1", k.command("kubectl apply"))
	k.apply(nearClient)
	k.mustAsk("rollout", "status", "daemonset/web", waitFlag)
	k.mustAsk("wait", "--for=condition=Ready", "pod/client", "pod/client1", waitFlag)
}

// check verifies everything that works now according to the quick start.
func (k *kubeadm) check() {
	k.t.Helper()
	k.on("node1", "kubectl get nodes,pods -A -o wide")
	const every = "daemonset/fairlead"
	for _, pod := range k.names("--namespace=kube-system", "--selector=app.kubernetes.io/name=fairlead") {
		status := k.on("node1", strings.Replace(k.command("kubectl -n kube-system exec daemonset/fairlead -c agent -- /fairlead status"), every, pod, 1))
		if !strings.HasSuffix(status, "\nhealthy\n") || !strings.Contains(status, "kubernetes at 10.200.0.11:6443, synced") {
			k.t.Errorf("%s is not as it has to be", pod)
		}
		k.on("node1", strings.Replace(k.command("kubectl -n kube-system exec daemonset/fairlead -c agent -- /fairlead service list"), every, pod, 1))
	}
	servers := k.names("--selector=app=web")
	ask := k.command("kubectl exec client ")
	for _, client := range []string{"client", "client1"} {
		k.requireAll(servers, client, func() []string {
			return strings.Fields(k.on("node1", strings.Replace(ask, "exec client ", "exec "+client+" ", 1)))
		})
	}
	url := strings.TrimPrefix(k.command("curl "), "curl ")
	for i, name := range k.Names() {
		at := strings.Replace(url, k.Family.Node(1)[0].Addr().String(), k.Family.Node(i + 1)[0].Addr().String(), 1)
		k.requireAll(servers, "outside, by "+name, func() []string { return []string{k.outside(at)} })
		if count := k.on(name, k.command("(nft list ruleset")+" || [ $? = 1 ]"); count != "0\n" {
			k.t.Errorf("%s has %s rules of a Service proxy", name, count)
		}
	}
}

// names returns the names of pods.
func (k *kubeadm) names(which ...string) []string {
	k.t.Helper()
	return strings.Fields(strings.ReplaceAll(k.mustAsk(append([]string{"get", "pods", "--output=name"}, which...)...), "pod/", ""))
}

// requireAll asks until all servers have answered. All are equally likely, so a server that has not
// answered any of a hundred requests cannot be reached.
func (k *kubeadm) requireAll(servers []string, who string, ask func() []string) {
	k.t.Helper()
	left := slices.Clone(servers)
	for range 100 {
		for _, answer := range ask() {
			if !slices.Contains(servers, answer) {
				k.t.Fatalf("%s has the answer %q", who, answer)
			}
			left = slices.DeleteFunc(left, func(name string) bool { return name == answer })
		}
		if len(left) == 0 {
			return
		}
	}
	k.t.Fatalf("%s has had no answer of %q", who, left)
}

// outside sends requests as a machine outside the cluster.
func (k *kubeadm) outside(url string) string {
	k.t.Helper()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = k.Netns("outside").Do(func() error {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
	response, err := client.Get(url)
	if err != nil {
		k.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		k.t.Fatal(err)
	}
	return string(text)
}

// uninstallAgent removes the agent, also from the control plane's node.
func (k *kubeadm) uninstallAgent() {
	k.t.Helper()
	chart := "_output/image/fairlead-chart.tgz"
	k.on("node1", strings.Replace(k.command("helm upgrade --namespace kube-system --reuse-values --set cleanup=true"), "fairlead-chart.tgz", chart, 1))
	k.on("node1", k.command("helm uninstall"))
	for _, name := range k.Names() {
		left := strings.Fields(k.on(name, "ls --ignore=*.debug /sys/fs/bpf /opt/cni/bin /etc/cni/net.d"))
		if diff := cmp.Diff([]string{"/etc/cni/net.d:", "/opt/cni/bin:", "loopback", "/sys/fs/bpf:"}, left); diff != "" {
			k.t.Errorf("%s has (-want +have):\n%s", name, diff)
		}
	}
}
