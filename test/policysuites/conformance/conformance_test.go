// Package conformance runs the conformance suite of ClusterNetworkPolicy against a running cluster.
package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"
	api "sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	"sigs.k8s.io/network-policy-api/conformance/utils/config"
	_ "sigs.k8s.io/network-policy-api/conformance/utils/flags"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
	"sigs.k8s.io/yaml"

	"fairlead.io/fairlead/test/policysuites/inside"
)

// module is where the suite and the definitions of the kind come from.
const module = "sigs.k8s.io/network-policy-api"

var tier = flag.String("tier", "", "run only the cases of a tier, Admin or Baseline")

func TestMain(m *testing.M) { inside.Main(m) }

func TestStandard(t *testing.T) { conform(t, "standard", suite.StandardFeatures.UnsortedList()) }

func TestExperimental(t *testing.T) {
	conform(t, "experimental", suite.ExperimentalFeatures.UnsortedList())
}

// conform runs the suite with the definition of a channel, which the cluster has no longer than that.
func conform(t *testing.T, channel string, features []suite.SupportedFeature) {
	settings, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	settings.QPS, settings.Burst = 200, 200
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{kubescheme.AddToScheme, apiextensions.AddToScheme, api.Install} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := client.New(settings, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(settings)
	if err != nil {
		t.Fatal(err)
	}
	define(t, objects, channel)
	awaitAgents(t, objects, clients, settings)
	s := suite.New(suite.Options{
		Client: objects, ClientSet: clients, KubeConfig: *settings, CleanupBaseResources: true,
		SupportedFeatures: suite.ParseSupportedFeatures(join(features)),
		// By default a denied connection is waited for three seconds, twice. There is nothing to wait for here.
		TimeoutConfig: config.TimeoutConfig{RequestTimeout: time.Second, PokeInterval: 100 * time.Millisecond},
	})
	var cases []suite.ConformanceTest
	for _, c := range tests.ConformanceTests {
		if strings.HasPrefix(c.ShortName, "CNP"+*tier) {
			cases = append(cases, c)
		}
	}
	if len(cases) < 10 {
		t.Fatalf("%d cases of %d are those of the tier %q", len(cases), len(tests.ConformanceTests), *tier)
	}
	s.Setup(t)
	s.Run(t, cases)
}

func join(features []suite.SupportedFeature) string {
	var names []string
	for _, f := range features {
		names = append(names, string(f))
	}
	return strings.Join(names, ",")
}

// define gives the cluster the kind until the test ends.
func define(t *testing.T, c client.Client, channel string) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(strings.TrimSpace(string(dir)), "config", "crd", channel, "policy.networking.k8s.io_clusternetworkpolicies.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	definition := &apiextensions.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, definition); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	ctx := context.Background()
	if err := c.Create(ctx, definition); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Delete(ctx, definition); err != nil {
			t.Error(err)
		}
		// The next test creates it again, which it cannot while this one is being deleted.
		await(t, "the kind is gone", func(ctx context.Context) (bool, error) {
			err := c.Get(ctx, client.ObjectKeyFromObject(definition), &apiextensions.CustomResourceDefinition{})
			return err != nil, client.IgnoreNotFound(err)
		})
	})
	await(t, "the kind is served", func(ctx context.Context) (bool, error) {
		if err := c.Get(ctx, client.ObjectKeyFromObject(definition), definition); err != nil {
			return false, err
		}
		for _, condition := range definition.Status.Conditions {
			if condition.Type == apiextensions.Established && condition.Status == apiextensions.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
}

func await(t *testing.T, what string, done wait.ConditionWithContextFunc) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(context.Background(), 100*time.Millisecond, 2*time.Minute, true, done); err != nil {
		t.Errorf("wait until %s: %v", what, err)
	}
}

// awaitAgents returns when all agents follow the kind, for which they ask the API server about once a minute: when each
// counts a policy that is about nobody.
func awaitAgents(t *testing.T, c client.Client, clients kubernetes.Interface, settings *rest.Config) {
	t.Helper()
	nobody := &meta.LabelSelector{MatchLabels: map[string]string{"policysuites": "nobody"}}
	policy := &api.ClusterNetworkPolicy{ObjectMeta: meta.ObjectMeta{Name: "policysuites"}, Spec: api.ClusterNetworkPolicySpec{
		Tier: api.AdminTier, Subject: api.ClusterNetworkPolicySubject{Namespaces: nobody},
	}}
	if err := c.Create(context.Background(), policy); err != nil {
		t.Fatal(err)
	}
	agents, err := clients.CoreV1().Pods("kube-system").List(context.Background(), meta.ListOptions{LabelSelector: "app.kubernetes.io/name=fairlead"})
	if err != nil || len(agents.Items) == 0 {
		t.Fatalf("find the agents: %d, %v", len(agents.Items), err)
	}
	follow := func(count int) {
		for _, agent := range agents.Items {
			await(t, fmt.Sprintf("%s follows %d ClusterNetworkPolicies", agent.Name, count), func(ctx context.Context) (bool, error) {
				have, err := followed(ctx, clients, settings, agent.Name)
				return have == count, err
			})
		}
	}
	// What an agent has of a kind stays when the kind goes.
	t.Cleanup(func() {
		if err := c.Delete(context.Background(), policy); err != nil {
			t.Error(err)
		}
		follow(0)
	})
	follow(1)
}

// followed returns how many policies an agent's status counts.
func followed(ctx context.Context, clients kubernetes.Interface, settings *rest.Config, agent string) (int, error) {
	request := clients.CoreV1().RESTClient().Post().Namespace("kube-system").Resource("pods").Name(agent).SubResource("exec").
		VersionedParams(&core.PodExecOptions{Container: "agent", Command: []string{"/fairlead", "status", "-o", "json"}, Stdout: true, Stderr: true}, kubescheme.ParameterCodec)
	exec, err := remotecommand.NewSPDYExecutor(settings, "POST", request.URL())
	if err != nil {
		return 0, err
	}
	var out, problems bytes.Buffer
	failed := exec.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &problems})
	var status struct {
		Policies struct {
			ClusterNetworkPolicies int `json:"clusterNetworkPolicies"`
		} `json:"policies"`
	}
	// A status that is not good ends with an error too.
	if err := json.Unmarshal(out.Bytes(), &status); err != nil {
		return 0, fmt.Errorf("read the status of %s: %w: %w: %s", agent, err, failed, problems.String())
	}
	return status.Policies.ClusterNetworkPolicies, nil
}
