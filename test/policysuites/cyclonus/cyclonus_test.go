// Package cyclonus runs the generated cases of cyclonus against a running cluster: policies, and what each pod can
// reach of each other, compared with cyclonus' own simulation.
package cyclonus

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/connectivity"
	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/kube"
	"github.com/mattfenwick/cyclonus/pkg/matcher"
	"github.com/sirupsen/logrus"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.io/fairlead/test/cluster/place"
	"fairlead.io/fairlead/test/cluster/sctp"
	"fairlead.io/fairlead/test/policysuites/inside"
)

const (
	answerTime = time.Second            // how long an answer is waited for
	resend     = 300 * time.Millisecond // of a datagram
	tries      = 5                      // of a step, until all is as simulated
)

var (
	mode    = flag.String("mode", generator.ProbeModePodIP, "how pods are reached: "+strings.Join(generator.AllProbeModes, ", "))
	workers = flag.Int("workers", 200, "how many connections are tried at once")
)

func TestMain(m *testing.M) { inside.Main(m) }

// pods gives cyclonus a cluster. Connections are tried from here, in the network namespace of a pod: by `kubectl exec`,
// as cyclonus does it, a step takes half a minute.
type pods struct {
	*kube.Kubernetes

	mu     sync.Mutex
	places map[string]place.Place // of pods, by namespace and name
}

// ExecuteRemoteCommand does what `agnhost connect` does. Its third result is an error of the connection.
func (p *pods) ExecuteRemoteCommand(namespace, pod, container string, command []string) (string, string, error, error) {
	where, err := p.find(namespace, pod, container)
	if err != nil {
		return "", "", nil, err
	}
	to, protocol := command[2], strings.TrimPrefix(command[len(command)-1], "--protocol=")
	var failed error
	err = where.Do(func() error {
		failed = try(protocol, to)
		return nil
	})
	return "", "", failed, err
}

// try tries a connection, and waits for an answer where the protocol has none of its own.
func try(protocol, to string) error {
	switch protocol {
	case "sctp":
		return sctp.Dial(to, answerTime)
	case "tcp":
		conn, err := net.DialTimeout("tcp", to, answerTime)
		if err != nil {
			return err
		}
		return conn.Close()
	default:
		return tryDatagrams(to)
	}
}

func tryDatagrams(to string) error {
	conn, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	for end := time.Now().Add(answerTime); ; {
		if _, err := conn.Write([]byte("hostname\n")); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(resend)); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 1024))
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end) {
			return err
		}
	}
}

// find returns the place of a pod. The pod itself says which namespace it has, and a process here has the same.
func (p *pods) find(namespace, pod, container string) (place.Place, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := namespace + "/" + pod
	if known, ok := p.places[key]; ok {
		return known, nil
	}
	out, _, failed, err := p.Kubernetes.ExecuteRemoteCommand(namespace, pod, container, []string{"readlink", "/proc/self/ns/net"})
	if err := errors.Join(failed, err); err != nil {
		return place.Place{}, fmt.Errorf("find the network namespace of %s: %w", key, err)
	}
	candidates, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return place.Place{}, err
	}
	for _, path := range candidates {
		if name, err := os.Readlink(path); err == nil && name == strings.TrimSpace(out) {
			p.places[key] = place.Place{Netns: path}
			return p.places[key], nil
		}
	}
	return place.Place{}, fmt.Errorf("no process here is in the network namespace of %s", key)
}

// DeletePod also forgets where the pod was.
func (p *pods) DeletePod(namespace, pod string) error {
	p.mu.Lock()
	delete(p.places, namespace+"/"+pod)
	p.mu.Unlock()
	return p.Kubernetes.DeletePod(namespace, pod)
}

func TestGenerated(t *testing.T) {
	logrus.SetLevel(logrus.WarnLevel)
	settings, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	settings.QPS, settings.Burst = 1000, 1000
	clients, err := kubernetes.NewForConfig(settings)
	if err != nil {
		t.Fatal(err)
	}
	p := &pods{Kubernetes: &kube.Kubernetes{ClientSet: clients, RestConfig: settings}, places: map[string]place.Place{}}
	namespaces := []string{"x", "y", "z"}
	t.Cleanup(func() { remove(t, p, namespaces) })
	protocols := []core.Protocol{core.ProtocolTCP, core.ProtocolUDP, core.ProtocolSCTP}
	resources, err := probe.NewDefaultResources(p, namespaces, []string{"a", "b", "c"}, []int{80, 81}, protocols, nil, 120, false, "registry.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	target, err := resources.GetPod("z", "c")
	if err != nil {
		t.Fatal(err)
	}
	cases := generator.NewTestCaseGenerator(true, target.IP, namespaces, nil, nil).GenerateTestCases()
	if len(cases) < 200 {
		t.Fatalf("only %d cases", len(cases))
	}
	for i, c := range cases {
		t.Run(fmt.Sprintf("%03d %s", i+1, c.Description), func(t *testing.T) { execute(t, p, resources, c) })
	}
}

// remove deletes what the test made.
func remove(t *testing.T, p *pods, namespaces []string) {
	for _, name := range namespaces {
		if err := p.DeleteNamespace(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range namespaces {
		for tries := 0; ; tries++ { // the API announces the end of a namespace only to watches
			if _, err := p.ClientSet.CoreV1().Namespaces().Get(context.Background(), name, meta.GetOptions{}); err != nil {
				break
			}
			if tries == 300 {
				t.Errorf("the namespace %s is still there after half a minute", name)
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// execute does the steps of a case, and after each tries every pod from every other.
func execute(t *testing.T, p *pods, resources *probe.Resources, c *generator.TestCase) {
	state := &connectivity.TestCaseState{Kubernetes: p, Resources: resources}
	if err := state.ResetClusterState(); err != nil {
		t.Fatal(err)
	}
	if err := state.VerifyClusterState(); err != nil {
		t.Fatal(err)
	}
	for number, step := range c.Steps {
		for _, action := range step.Actions {
			if err := act(state, action); err != nil {
				t.Fatalf("step %d: %v", number+1, err)
			}
		}
		step.Probe.Mode = generator.ProbeMode(*mode)
		compare(t, p, state, step, number+1)
	}
}

// compare tries all connections until they are as simulated, and once more to see that they stay so.
func compare(t *testing.T, p *pods, state *connectivity.TestCaseState, step *generator.TestStep, number int) {
	t.Helper()
	builder := &probe.JobBuilder{TimeoutSeconds: 1}
	policies := matcher.BuildNetworkPolicies(true, state.Policies)
	result := connectivity.NewStepResult(probe.NewSimulatedRunner(policies, builder).RunProbeForConfig(step.Probe, state.Resources), policies, state.Policies)
	real := probe.NewKubeRunner(p, *workers, builder)
	good := 0
	for range tries {
		result.AddKubeProbe(real.RunProbeForConfig(step.Probe, state.Resources))
		// What a pod says to itself is not for policies to judge, and cyclonus judges it.
		if !result.Passed(true) {
			good = 0
		} else if good++; good == 2 {
			return
		}
	}
	t.Errorf("step %d: not as simulated; X marks the difference:\n%s\nsimulated:\n%s\nhere:\n%s", number,
		result.LastComparison().RenderSuccessTable(), result.SimulatedProbe.RenderTable(), result.LastKubeProbe().RenderTable())
}

// act does one action of a step.
func act(state *connectivity.TestCaseState, a *generator.Action) error {
	switch {
	case a.CreatePolicy != nil:
		return state.CreatePolicy(a.CreatePolicy.Policy)
	case a.UpdatePolicy != nil:
		return state.UpdatePolicy(a.UpdatePolicy.Policy)
	case a.DeletePolicy != nil:
		return state.DeletePolicy(a.DeletePolicy.Namespace, a.DeletePolicy.Name)
	case a.CreateNamespace != nil:
		return state.CreateNamespace(a.CreateNamespace.Namespace, a.CreateNamespace.Labels)
	case a.SetNamespaceLabels != nil:
		return state.SetNamespaceLabels(a.SetNamespaceLabels.Namespace, a.SetNamespaceLabels.Labels)
	case a.DeleteNamespace != nil:
		return state.DeleteNamespace(a.DeleteNamespace.Namespace)
	case a.ReadNetworkPolicies != nil:
		return state.ReadPolicies(a.ReadNetworkPolicies.Namespaces)
	case a.CreatePod != nil:
		return state.CreatePod(a.CreatePod.Namespace, a.CreatePod.Pod, a.CreatePod.Labels)
	case a.SetPodLabels != nil:
		return state.SetPodLabels(a.SetPodLabels.Namespace, a.SetPodLabels.Pod, a.SetPodLabels.Labels)
	case a.DeletePod != nil:
		return state.DeletePod(a.DeletePod.Namespace, a.DeletePod.Pod)
	default:
		return fmt.Errorf("unknown action %+v", a)
	}
}
