package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"fairlead.io/fairlead/pkg/source"
)

// withStatus is the kind's definition with as much of its status as both channels of the API have.
const withStatus = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: clusternetworkpolicies.policy.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, for tests"}
spec:
  group: policy.networking.k8s.io
  names: {kind: ClusterNetworkPolicy, plural: clusternetworkpolicies, singular: clusternetworkpolicy, listKind: ClusterNetworkPolicyList}
  scope: Cluster
  versions:
  - name: v1alpha2
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status:
            type: object
            required: [conditions]
            properties:
              conditions:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [type]
                items:
                  type: object
                  required: [lastTransitionTime, message, reason, status, type]
                  properties:
                    lastTransitionTime: {type: string, format: date-time}
                    message: {type: string, maxLength: 32768}
                    observedGeneration: {type: integer, format: int64, minimum: 0}
                    reason: {type: string, maxLength: 1024, minLength: 1, pattern: '^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$'}
                    status: {type: string, enum: ["True", "False", Unknown]}
                    type: {type: string, maxLength: 316}
`

// clusterPolicies are the ClusterNetworkPolicies of a server whose kind comes and goes.
type clusterPolicies struct {
	*apiNamespace
	definitions dynamic.ResourceInterface
	policies    dynamic.ResourceInterface
}

func newClusterPolicies(w *apiNamespace) *clusterPolicies {
	w.Helper()
	client, err := dynamic.NewForConfig(w.server.Config())
	w.must(err)
	return &clusterPolicies{
		w, client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}),
		client.Resource(source.ClusterPolicyGroup().WithResource("clusternetworkpolicies")),
	}
}

func (p *clusterPolicies) install() {
	p.Helper()
	definition := &unstructured.Unstructured{}
	p.must(yaml.Unmarshal([]byte(withStatus), &definition.Object))
	_, err := p.definitions.Create(p.ctx, definition, metav1.CreateOptions{})
	p.must(err)
	p.await("the kind to be served", func() bool {
		_, err := p.policies.List(p.ctx, metav1.ListOptions{})
		return err == nil
	})
}

// uninstall removes the kind with all its objects.
func (p *clusterPolicies) uninstall() {
	p.Helper()
	const name = "clusternetworkpolicies.policy.networking.k8s.io"
	p.must(p.definitions.Delete(p.ctx, name, metav1.DeleteOptions{}))
	p.await("the definition to go", func() bool {
		_, err := p.definitions.Get(p.ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func (p *clusterPolicies) create(name, spec string) {
	p.Helper()
	object := &unstructured.Unstructured{}
	p.must(yaml.Unmarshal([]byte(`{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: `+name+`}, spec: `+spec+`}`), &object.Object))
	_, err := p.policies.Create(p.ctx, object, metav1.CreateOptions{})
	p.must(err)
}

// patch changes a policy, or a part of it.
func (p *clusterPolicies) patch(name, patch string, part ...string) {
	p.Helper()
	_, err := p.policies.Patch(p.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "test"}, part...)
	p.must(err)
}

// get returns a policy, and its conditions by type.
func (p *clusterPolicies) get(name string) (*unstructured.Unstructured, map[string]metav1.Condition) {
	p.Helper()
	object, err := p.policies.Get(p.ctx, name, metav1.GetOptions{})
	p.must(err)
	var typed struct {
		Status struct{ Conditions []metav1.Condition }
	}
	text, err := json.Marshal(object.Object)
	p.must(err)
	p.must(json.Unmarshal(text, &typed))
	all := map[string]metav1.Condition{}
	for _, condition := range typed.Status.Conditions {
		all[condition.Type] = condition
	}
	return object, all
}

// awaitCondition waits until the condition of a policy is about its newest spec, and returns it.
func (p *clusterPolicies) awaitCondition(name string) (condition metav1.Condition) {
	p.Helper()
	p.await("the condition of "+name, func() bool {
		object, all := p.get(name)
		condition = all["fairlead.io/Accepted"]
		return condition.ObservedGeneration == object.GetGeneration()
	})
	return condition
}

// patches counts the writes that the server has accepted of a controller.
type patches struct {
	next  http.RoundTripper
	count *atomic.Int64
}

// RoundTrip sends a request.
func (c patches) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(request)
	if err == nil && request.Method == http.MethodPatch && response.StatusCode == http.StatusOK {
		c.count.Add(1)
	}
	return response, err
}

// asController returns what a controller has with only the permissions of the manifest, by a line of its own.
func (p *clusterPolicies) asController(log io.Writer) (Config, *line, *atomic.Int64) {
	p.applyRights()
	cfg, own, count := p.server.Config(), newLine(), &atomic.Int64{}
	cfg.Impersonate.UserName = "system:serviceaccount:kube-system:fairlead-controller"
	cfg.Dial = own.dial
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return patches{next, count} })
	return Config{REST: cfg, Version: "test", Log: slog.New(slog.NewTextHandler(log, nil))}, own, count
}

const (
	goodPolicy  = `{tier: Admin, priority: 7, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}, {action: Accept, to: [{nodes: {}}]}]}`
	partlyWrong = `{tier: Admin, priority: 7, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}, {action: Accept, to: [{domainNames: [example.com]}]}]}`
	wrongPolicy = `{tier: Top, priority: 7, subject: {namespaces: {}}, egress: [{action: Deny, to: [{namespaces: {}}]}]}`
)

// testConditions checks what the status of policies says, and that nothing is written which is there, from before the cluster
// has the kind until after, with only the permissions of the manifest.
func testConditions(w *apiNamespace) {
	p, log := newClusterPolicies(w), &logBuffer{}
	cfg, _, count := p.asController(log)
	conditions, err := NewConditions(cfg)
	w.must(err)
	conditions.followed.lacking = 50 * time.Millisecond
	var hours atomic.Int64
	began := time.Now().Truncate(time.Second)
	conditions.now = func() time.Time { return began.Add(time.Duration(hours.Load()) * time.Hour) }
	run(w.T, conditions.Run)
	lacking := func() bool { return conditions.followed.status().Lacking }
	w.await("the kind to be missed", lacking)
	p.install()

	p.create("good", goodPolicy)
	p.create("partly", partlyWrong)
	p.create("wrong", wrongPolicy)
	const not = "False %s Not followed as written: %d of %d rules, which accept no more than what is right in them: %s"
	for name, want := range map[string]string{
		"good":   "True Accepted Followed as written: 2 of 2 rules.",
		"partly": fmt.Sprintf(not, "PartiallyInvalid", 1, 2, "spec.egress[1] peer 0 matches nothing, since domainNames are not supported: use networks."),
		"wrong": fmt.Sprintf(not, "Invalid", 1, 1,
			`tier "Top" is not known, so the policy is treated as one of the tier Admin that only denies: use Admin or Baseline.`),
	} {
		c := p.awaitCondition(name)
		if have := fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message); have != want || !c.LastTransitionTime.Time.Equal(began) || c.ObservedGeneration != 1 {
			w.Errorf("%s: %s, since %v, generation %d\nwant %s", name, have, c.LastTransitionTime, c.ObservedGeneration, want)
		}
	}
	if n := count.Load(); n != 3 {
		w.Errorf("it has written %d times, want 3", n)
	}
	p.testOwner()
	p.testEdits(&hours, began, count)

	// What was computed from an older state of the policy is refused.
	conditions.mu.Lock()
	stale := *conditions.policies["good"]
	stale.have, stale.version = nil, "1"
	conditions.policies["stale"], stale.name = &stale, "good"
	conditions.mu.Unlock()
	if err := conditions.write(w.ctx, "stale"); !apierrors.IsConflict(err) {
		w.Errorf("writing what it computed from an older state: %v", err)
	}

	// Whoever overwrites the condition has it overwritten.
	p.patch("good", `{"status":{"conditions":[{"type":"fairlead.io/Accepted","status":"False","reason":"No","message":"no","observedGeneration":2,"lastTransitionTime":"2020-01-01T00:00:00Z"}]}}`, "status")
	w.await("the condition to be restored", func() bool { _, all := p.get("good"); return all["fairlead.io/Accepted"].Reason == "Accepted" })
	p.uninstall()
	w.await("the kind to be missed again", lacking)
	p.install()
	p.create("good", goodPolicy)
	if c := p.awaitCondition("good"); c.Status != metav1.ConditionTrue {
		w.Errorf("a policy of the new kind: %+v", c)
	}
	p.uninstall()
	if n := log.lines("cannot write"); n != 0 {
		w.Errorf("%d writes have failed:\n%s", n, log.text.String())
	}
}

// testOwner checks that the condition belongs to the controller and the spec to its author.
func (p *clusterPolicies) testOwner() {
	p.Helper()
	object, _ := p.get("good")
	for _, entry := range object.GetManagedFields() {
		fields := entry.FieldsV1.GetRawString()
		if owner := entry.Manager == "fairlead-controller"; owner != strings.Contains(fields, "fairlead.io/Accepted") || owner && strings.Contains(fields, "f:spec") {
			p.Errorf("%s owns %s", entry.Manager, fields)
		}
	}
}

// testEdits checks what changes with an edit: the time only with the status, and nothing without an edit.
func (p *clusterPolicies) testEdits(hours *atomic.Int64, began time.Time, count *atomic.Int64) {
	p.Helper()
	p.patch("good", `{"status":{"conditions":[{"type":"Others","status":"True","reason":"Theirs","message":"m","lastTransitionTime":"2020-01-01T00:00:00Z"},
		`+p.ours("good")+`]}}`, "status")
	hours.Store(1)
	p.patch("good", `{"metadata":{"labels":{"x":"y"}}}`)
	p.patch("good", `{"spec":{"priority":8}}`)
	if c := p.awaitCondition("good"); c.ObservedGeneration != 2 || !c.LastTransitionTime.Time.Equal(began) {
		p.Errorf("after an edit that leaves it right: %+v", c)
	}
	if _, all := p.get("good"); all["Others"].Reason != "Theirs" || len(all) != 2 {
		p.Errorf("others' conditions: %+v", all)
	}
	hours.Store(2)
	p.patch("partly", `{"spec":`+inJSON(p, goodPolicy)+`}`)
	if c := p.awaitCondition("partly"); c.Status != metav1.ConditionTrue || !c.LastTransitionTime.Time.Equal(began.Add(2*time.Hour)) {
		p.Errorf("after it was corrected: %+v", c)
	}
	// The events of the label and of the others' condition came before those of the edits.
	if n := count.Load(); n != 5 {
		p.Errorf("it has written %d times, want 5", n)
	}
}

// ours returns the condition of a policy as JSON.
func (p *clusterPolicies) ours(name string) string {
	p.Helper()
	_, all := p.get(name)
	text, err := json.Marshal(all["fairlead.io/Accepted"])
	p.must(err)
	return string(text)
}

func inJSON(p *clusterPolicies, text string) string {
	p.Helper()
	out, err := yaml.YAMLToJSON([]byte(text))
	p.must(err)
	return string(bytes.TrimSpace(out))
}

// run runs something until the test ends or it is told to end, and returns how to tell it, which waits.
func run(t *testing.T, what func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		what(ctx)
	}()
	end = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(end)
	return end
}
