package upkeep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/apiserver/pinned"
	"fairlead.io/fairlead/test/cluster/place"
	"fairlead.io/fairlead/test/cluster/running"
	"fairlead.io/fairlead/test/rig"
)

// root is the project's directory, from which the rig's commands run.
const root = "../../.."

// waitFlag allows for a busy machine.
const waitFlag = "--timeout=180s"

// TestMain runs the tests, or the subcommands that the tests start in other places.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 {
		switch os.Args[1] {
		case "send-requests":
			os.Exit(sendRequests(os.Args[2:]))
		case "snapshot":
			os.Exit(printSnapshot(os.Args[2]))
		}
	}
	os.Exit(m.Run())
}

// fixture is a cluster of two nodes.
type fixture struct {
	*running.Cluster
	t       *testing.T
	kubectl string // path of the program
	bridged bool   // another plugin connects the pods
}

// newFixture starts a cluster with the given options. It is removed at the end of the test.
func newFixture(t *testing.T, options ...string) *fixture {
	rig.Root(t)
	programs, err := pinned.Find("kubectl", "kubelet", "kube-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	if missing := programs.Missing(); len(missing) > 0 {
		rig.Lacking(t, "cluster", strings.Join(missing, ", ")+" must be built first: go run ./test/cluster build")
	}
	kubectl, err := programs.Binary("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	// The prefix is fixed per checkout: checkouts do not collide, and the next run finds what an
	// interrupted run left behind.
	prefix := fmt.Sprintf("u%06x", crc32.ChecksumIEEE([]byte(dir))&0xffffff)
	f := &fixture{t: t, kubectl: kubectl.Path}
	t.Cleanup(func() {
		if t.Failed() {
			f.rig(nil, "down", "-prefix", prefix)
			return
		}
		f.rig(nil, "down", "-prefix", prefix, "-purge")
	})
	f.rig(nil, "down", "-prefix", prefix) // clean up after an interrupted run
	f.rig(nil, append([]string{"up", "-prefix", prefix, "-nodes", "2"}, options...)...)
	if f.Cluster, err = running.Find(t.Context(), root, prefix); err != nil {
		t.Fatal(err)
	}
	return f
}

// rig runs a command of the rig and returns its output.
func (f *fixture) rig(input io.Reader, args ...string) string {
	f.t.Helper()
	var log bytes.Buffer
	cmd := running.Command(context.Background(), root, args...) // also runs during cleanup
	cmd.Stdin, cmd.Stderr = input, &log
	out, err := cmd.Output()
	if err != nil {
		f.t.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, out, log.String())
	}
	return string(out)
}

// helm runs helm as a user would.
func (f *fixture) helm(args ...string) string {
	f.t.Helper()
	return f.rig(nil, append([]string{"helm", "-prefix", f.Prefix, "--"}, args...)...)
}

// ask runs kubectl and returns its output.
func (f *fixture) ask(args ...string) (string, error) {
	cmd := exec.Command(f.kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+f.Kubeconfig)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := f.Netns("control").Run(cmd); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s%s", strings.Join(args, " "), err, out.String(), log.String())
	}
	return out.String(), nil
}

func (f *fixture) mustAsk(args ...string) string {
	f.t.Helper()
	out, err := f.ask(args...)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// await calls good until it succeeds.
func (f *fixture) await(what string, good func() error) {
	f.t.Helper()
	began := time.Now()
	for {
		err := good()
		if err == nil {
			return
		}
		if time.Since(began) > 3*time.Minute {
			f.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// agents waits until every node has a ready agent of the latest revision.
func (f *fixture) agents() {
	f.t.Helper()
	f.mustAsk("--namespace=kube-system", "rollout", "status", "daemonset/fairlead", waitFlag)
}

// option returns the value of an option, which must be the same on every agent.
func (f *fixture) option(name string) string {
	f.t.Helper()
	var values []string
	for _, pod := range strings.Fields(f.mustAsk("--namespace=kube-system", "get", "pods", "--selector=app.kubernetes.io/name=fairlead", "--output=name")) {
		var view struct {
			Options []struct{ Name, Value string }
		}
		text := f.mustAsk("--namespace=kube-system", "exec", pod, "--container=agent", "--", "/fairlead", "config", "--output=json")
		if err := json.Unmarshal([]byte(text), &view); err != nil {
			f.t.Fatalf("%v: %s", err, text)
		}
		for _, o := range view.Options {
			if o.Name == name {
				values = append(values, o.Value)
			}
		}
	}
	if slices.Sort(values); len(values) != f.Nodes || len(slices.Compact(values)) != 1 {
		f.t.Fatalf("%s is %q", name, values)
	}
	return values[0]
}

// podPlace returns a place in the network of a pod and the cgroup of its node.
func (f *fixture) podPlace(node, name string) place.Place {
	f.t.Helper()
	at, err := f.Node(node)
	if err != nil {
		f.t.Fatal(err)
	}
	uid := f.mustAsk("get", "pod", name, "--output=jsonpath={.metadata.uid}")
	for pid, cgroup := range f.processes(node) {
		if strings.Contains(cgroup, uid) {
			return place.Place{Netns: fmt.Sprintf("/proc/%d/ns/net", pid), Cgroup: at.Cgroup}
		}
	}
	f.t.Fatalf("%s has no pod %s", node, name)
	return place.Place{}
}

// processes returns the processes of a node with the cgroup of each.
func (f *fixture) processes(node string) map[int]string {
	f.t.Helper()
	found := map[int]string{}
	err := filepath.WalkDir(f.Cgroup(node), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return ignoreGone(err)
		}
		text, err := os.ReadFile(path)
		for word := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				return err
			}
			found[pid] = path
		}
		return ignoreGone(err)
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return found
}

// ignoreGone drops the errors about cgroups of containers that end meanwhile.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// agent returns the PID of the agent on a node, 0 if there is none.
func (f *fixture) agent(node string) int {
	f.t.Helper()
	for pid := range f.processes(node) {
		if program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && filepath.Base(program) == "fairlead" {
			return pid
		}
	}
	return 0
}
