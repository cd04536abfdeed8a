package upkeep

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"fairlead.io/fairlead/test/cluster/place"
)

// source is a process in the cluster that sends requests.
type source struct {
	name string
	in   io.WriteCloser
	out  *bufio.Reader
	cmd  *exec.Cmd
}

// sources are all processes that send requests.
type sources []*source

// newSource starts a process that sends requests to the targets, and waits until all have answered.
func (f *fixture) newSource(name string, at place.Place, targets []target) *source {
	f.t.Helper()
	self, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	text, err := json.Marshal(targets)
	if err != nil {
		f.t.Fatal(err)
	}
	s := &source{name: name, cmd: exec.Command(self, "send-requests", string(text))}
	s.cmd.Stderr = os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		f.t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	s.out = bufio.NewReader(out)
	if err := at.Start(s.cmd); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		s.in.Close()
		_ = s.cmd.Process.Kill() // an error means that it has ended
		_ = s.cmd.Wait()         // it was killed
	})
	if line, err := s.out.ReadString('\n'); line != "ready\n" {
		f.t.Fatalf("%s: %q, %v", name, line, err)
	}
	return s
}

// take returns the tallies of the requests since the previous call.
func (s *source) take() (tallies []tally, err error) {
	if _, err := io.WriteString(s.in, "\n"); err != nil {
		return nil, fmt.Errorf("ask %s: %w", s.name, err)
	}
	line, err := s.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &tallies)
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", s.name, err)
	}
	return tallies, nil
}

// onNode1 is in the names of targets that need no other node than node1.
const onNode1 = "what stays at "

// startSources sends requests from a pod, from a node and from outside to Services, in every
// supported way.
func (f *fixture) startSources() sources {
	f.t.Helper()
	var pod, node, outside []target
	both := func(list *[]target, name string, addr netip.Addr, tcp, udp string) {
		*list = append(*list, target{name, "tcp", net.JoinHostPort(addr.String(), tcp)}, target{name + ", UDP", "udp", net.JoinHostPort(addr.String(), udp)})
	}
	addrs := func(of, path string) (list []netip.Addr) {
		f.await(of+" has addresses", func() error {
			list = nil
			for _, text := range strings.Fields(f.mustAsk("get", of, "--output=jsonpath="+path)) {
				addr, err := netip.ParseAddr(text)
				if err != nil {
					return err
				}
				list = append(list, addr)
			}
			if len(list) != len(f.Family.Services()) {
				return fmt.Errorf("%v", list)
			}
			return nil
		})
		return list
	}
	for _, a := range addrs("service/echo", "{.spec.clusterIPs[*]}") {
		both(&pod, "a pod, ClusterIP "+a.String(), a, "80", "80")
		both(&node, "a node, ClusterIP "+a.String(), a, "80", "80")
	}
	for _, a := range addrs("service/stays", "{.spec.clusterIPs[*]}") {
		both(&pod, "a pod, "+onNode1+a.String(), a, "80", "80")
		both(&node, "a node, "+onNode1+a.String(), a, "80", "80")
	}
	for _, p := range f.Family.Node(1) {
		both(&outside, "outside, "+onNode1+p.Addr().String(), p.Addr(), "30083", "30084")
	}
	for i, name := range f.Names() {
		for _, p := range f.Family.Node(i + 1) {
			switch {
			case i == 0:
				both(&node, "a node, NodePort of its own", p.Addr(), "30080", "30081")
			case !f.bridged: // or two flows would share a port; see docs/limits.md
				both(&pod, "a pod, NodePort of "+name, p.Addr(), "30080", "30081")
			}
			both(&outside, "outside, NodePort of "+name, p.Addr(), "30080", "30081")
		}
	}
	for _, a := range addrs("service/echo", "{.status.loadBalancer.ingress[*].ip}") {
		both(&outside, "outside, balancer "+a.String(), a, "80", "80")
	}
	for _, a := range addrs("service/echo-local", "{.status.loadBalancer.ingress[*].ip}") {
		outside = append(outside, target{"outside, Local " + a.String(), "tcp", net.JoinHostPort(a.String(), "80")})
	}
	at, err := f.Node("node1")
	if err != nil {
		f.t.Fatal(err)
	}
	return sources{
		f.newSource("pod", f.podPlace("node1", "client"), pod), f.newSource("node", at, node),
		f.newSource("outside", f.Netns("outside"), outside),
	}
}

// stop stops the requests.
func (ss sources) stop() {
	for _, s := range ss {
		s.in.Close()
		_ = s.cmd.Wait() // the tallies have been read
	}
}

// settle is how long requests continue after a change of the cluster, so that damage shows.
const quietFor = 2 * time.Second

// tallies returns the tallies of all requests since the previous call.
func (ss sources) tallies(f *fixture) (all []tally) {
	f.t.Helper()
	for _, s := range ss {
		tallies, err := s.take()
		if err != nil {
			f.t.Fatal(err)
		}
		all = append(all, tallies...)
	}
	return all
}

// check fails the test if a request failed since the previous call, or if a target received none.
func (ss sources) check(f *fixture) {
	f.t.Helper()
	time.Sleep(quietFor)
	requests, failed, again, slowest, wrong := 0, 0, 0, time.Duration(0), false
	for _, y := range ss.tallies(f) {
		requests, failed = requests+y.Requests+y.Held, failed+y.Failed
		again, slowest = again+y.Again, max(slowest, y.Slowest)
		if y.Failed > 0 || y.Requests == 0 || y.Held == 0 {
			f.t.Error(y)
			wrong = true
		}
	}
	if wrong {
		f.saveFlows()
	}
	f.t.Logf("%d of %d requests failed, %d datagrams were sent again; the slowest took %v", failed, requests, again, slowest.Round(time.Millisecond))
}

// saveFlows writes what netfilter and the agents know about connections to _output/upkeep, to find
// out why requests failed.
func (f *fixture) saveFlows() {
	f.t.Helper()
	dir := filepath.Join(root, "_output", "upkeep")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		f.t.Fatal(err)
	}
	write := func(name string, text []byte, err error) {
		if err != nil {
			text = fmt.Appendf(text, "%v\n", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			f.t.Fatal(err)
		}
	}
	places := map[string]place.Place{"outside": f.Netns("outside")}
	for _, name := range f.Names() {
		at, err := f.Node(name)
		if err != nil {
			f.t.Fatal(err)
		}
		places[name] = at
	}
	for name, at := range places {
		for _, file := range []string{"nf_conntrack", "udp", "tcp"} {
			var text bytes.Buffer
			cmd := exec.Command("cat", "/proc/thread-self/net/"+file)
			cmd.Stdout, cmd.Stderr = &text, &text
			err := at.Run(cmd)
			write(name+"-"+file, text.Bytes(), err)
		}
	}
	for _, pod := range strings.Fields(f.mustAsk("--namespace=kube-system", "get", "pods", "--selector=app.kubernetes.io/name=fairlead", "--output=name")) {
		for _, what := range []string{"conntrack list", "drops", "status"} {
			text, err := f.ask(append([]string{"--namespace=kube-system", "exec", pod, "--container=agent", "--", "/fairlead"}, strings.Fields(what)...)...)
			write(strings.ReplaceAll(strings.TrimPrefix(pod, "pod/")+"-"+what, " ", "-"), []byte(text), err)
		}
	}
	f.t.Logf("%s has the connections", dir)
}
