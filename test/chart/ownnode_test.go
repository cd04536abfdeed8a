package chart

import (
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"fairlead.io/fairlead/pkg/source"
	"fairlead.io/fairlead/test/apiserver"
)

// nodePatcher patches Nodes as a client, and changes nothing.
type nodePatcher func(node, body string, subresources ...string) error

func nodesAs(t *testing.T, client kubernetes.Interface) nodePatcher {
	return func(node, body string, subresources ...string) error {
		_, err := client.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, []byte(body),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, subresources...)
		return err
	}
}

const (
	connected = `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"x"}]}}`
	admitted  = `{"spec":{"taints":[{"key":"a","effect":"NoSchedule"},{"key":"node.kubernetes.io/not-ready","effect":"NoSchedule"}]}}` // which the server adds
)

// ownNode checks that an agent may change a taint and a condition of the Node that its pod runs on,
// nothing else of it, and no other Node. The policy does not restrict other clients.
func ownNode(t *testing.T, server *apiserver.Server) {
	if _, err := run(t, "install", "fairlead", folder, "--kubeconfig="+server.Kubeconfig(), "--namespace=kube-system", "--set=k8sServiceHost=192.0.2.1"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"own", "other"} {
		fullNode(t, server.Client(), name)
	}
	agent, admin := nodesAs(t, asPodOn(t, server, "own")), nodesAs(t, server.Client())
	// New rights and a new policy take effect only once the server has noticed them. Until then it
	// refuses for another reason, or not at all.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := agent("other", connected, "status")
		if err != nil && strings.Contains(err.Error(), "no Node but the one that its pod runs on") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("changing another Node was not refused by the policy within a minute: %v", err)
		}
	}
	for _, err := range []error{
		agent("own", admitted), agent("own", connected, "status"), admin("other", admitted), admin("other", connected, "status"),
		admin("own", `{"metadata":{"labels":{"x":"y"}}}`),
	} {
		if err != nil {
			t.Errorf("what an agent does to its Node, or another client to any: %v", err)
		}
	}
	otherFields(t, agent)
	if err := agent("own", `{"spec":{"taints":null}}`, "status"); err != nil { // which this subresource ignores
		t.Error(err)
	}
}

// fullNode creates a Node with fields that the agent must not change, and the taint and the
// condition that it does change.
func fullNode(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	made, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "z"}, Annotations: map[string]string{"note": "n"}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: source.TaintAwaiting, Effect: corev1.TaintEffectNoSchedule}, {Key: "a", Effect: corev1.TaintEffectNoSchedule},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	made.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue},
	}
	if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// otherFields checks that the policy refuses each other change of an agent's own Node.
func otherFields(t *testing.T, agent nodePatcher) {
	t.Helper()
	const nothing, taints, conditions = "nothing of its Node but", "no taints of its Node but", "no conditions of its Node but"
	object := []struct{ name, body, says string }{
		{"a new label", `{"metadata":{"labels":{"x":"y"}}}`, nothing},
		{"a label of node-restriction", `{"metadata":{"labels":{"node-restriction.kubernetes.io/x":"y"}}}`, nothing},
		{"another value of a label", `{"metadata":{"labels":{"zone":"y"}}}`, nothing},
		{"a label less", `{"metadata":{"labels":{"zone":null}}}`, nothing},
		{"no labels", `{"metadata":{"labels":null}}`, nothing},
		{"an annotation", `{"metadata":{"annotations":{"x":"y"}}}`, nothing},
		{"an annotation less", `{"metadata":{"annotations":{"note":null}}}`, nothing},
		{"a finalizer", `{"metadata":{"finalizers":["example.com/x"]}}`, nothing},
		{"an owner", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"x","uid":"1"}]}}`, nothing},
		{"no pods wanted", `{"spec":{"unschedulable":true}}`, nothing},
		{"a provider", `{"spec":{"providerID":"p://1"}}`, nothing},
		{"pods' addresses", `{"spec":{"podCIDR":"10.1.0.0/24","podCIDRs":["10.1.0.0/24"]}}`, nothing},
		{"the other taint less", `{"spec":{"taints":[{"key":"fairlead.io/agent-not-ready","effect":"NoSchedule"}]}}`, taints},
		{"no taints", `{"spec":{"taints":null}}`, taints},
		{"a new taint", `{"spec":{"taints":[{"key":"b","effect":"NoExecute"}]}}`, taints},
		{"a new taint of the agent's key", `{"spec":{"taints":[{"key":"fairlead.io/agent-not-ready","effect":"NoExecute"}]}}`, taints},
		{"another value of a taint", `{"spec":{"taints":[{"key":"a","value":"x","effect":"NoSchedule"}]}}`, taints},
		{"a label with the taint", `{"metadata":{"labels":{"x":"y"}},` + admitted[1:], nothing},
	}
	status := []struct{ name, body, says string }{
		{"a label", `{"metadata":{"labels":{"x":"y"}}}`, nothing},
		{"an annotation less", `{"metadata":{"annotations":{"note":null}}}`, nothing},
		{"an address", `{"status":{"addresses":[{"type":"ExternalIP","address":"192.0.2.9"}]}}`, nothing},
		{"no addresses", `{"status":{"addresses":null}}`, nothing},
		{"room for pods", `{"status":{"capacity":{"pods":"1000"}}}`, nothing},
		{"an image", `{"status":{"images":[{"names":["x"],"sizeBytes":1}]}}`, nothing},
		{"a volume", `{"status":{"volumesInUse":["x"]}}`, nothing},
		{"another condition", `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, conditions},
		{"a condition more", `{"status":{"conditions":[{"type":"X","status":"False"}]}}`, conditions},
		{"a condition less", `{"status":{"conditions":[{"$patch":"delete","type":"Ready"}]}}`, conditions},
		{"its condition less", `{"status":{"conditions":[{"$patch":"delete","type":"NetworkUnavailable"}]}}`, conditions},
		{"its condition, unknown", `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"Unknown"}]}}`, conditions},
		{"no conditions", `{"status":{"conditions":null}}`, conditions},
		{"an address with the condition", `{"status":{"addresses":null,` + connected[len(`{"status":{`):], nothing},
	}
	for _, tt := range object {
		if err := agent("own", tt.body); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	for _, tt := range status {
		if err := agent("own", tt.body, "status"); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s in the status: %v", tt.name, err)
		}
	}
}

// asPodOn returns a client with the token that a kubelet gives the agent's pod on a node.
func asPodOn(t *testing.T, server *apiserver.Server, node string) kubernetes.Interface {
	t.Helper()
	client, ctx := server.Client(), t.Context()
	pod, err := client.CoreV1().Pods("kube-system").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-on-" + node},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: "fairlead", Containers: []corev1.Container{{Name: "agent", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	token, err := client.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, "fairlead", request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := server.Config()
	cfg.BearerToken = token.Status.Token
	made, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return made
}
