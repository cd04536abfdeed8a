package chart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.io/fairlead/pkg/source"
	"fairlead.io/fairlead/test/apiserver"
)

// policiesAreChecked checks that the API server accepts valid policies, refuses others with a clear
// message, and that the agent reads what the server accepted.
func policiesAreChecked(t *testing.T, server *apiserver.Server) {
	client, err := dynamic.NewForConfig(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(folder, "crds", "socketaccelerations.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	definition := &unstructured.Unstructured{}
	decode(t, string(content), &definition.Object)
	definitions := client.Resource(apischema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err = definitions.Create(t.Context(), definition, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	policies := client.Resource(source.AccelerationGroup().WithResource("socketaccelerations")).Namespace("default")
	create := func(spec string) (*unstructured.Unstructured, error) {
		object := &unstructured.Unstructured{}
		decode(t, "{apiVersion: fairlead.io/v1alpha1, kind: SocketAcceleration, metadata: {generateName: p-}, spec: "+spec+"}", &object.Object)
		deadline := time.Now().Add(time.Minute)
		for {
			made, err := policies.Create(t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
			// The server serves a kind some time after its CRD is created.
			if !apierrors.IsNotFound(err) || time.Now().After(deadline) {
				return made, err
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	list := func(item string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + "]"
	}
	const web, all = "{podSelector: {matchLabels: {app: web}}}", "{podSelector: {}}"
	for _, spec := range []string{
		"{from: [" + web + "], to: [" + all + "]}",
		"{from: [{node: true}, " + web + "], to: [" + web + "], ports: [1, 15001, 65535]}",
		"{from: [" + web + "], to: [{node: true}]}",
		"{from: " + list(web, 8) + ", to: " + list(all, 8) + ", ports: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]}",
		"{from: [" + all + "], to: [{podSelector: {matchExpressions: [{key: example.com/a.b_c, operator: NotIn, values: [x, '']}, {key: a, operator: Exists}]}}]}",
	} {
		made, err := create(spec)
		if err != nil {
			t.Errorf("%s: %v", spec, err)
			continue
		}
		var typed source.SocketAcceleration
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(made.Object, &typed, true); err != nil {
			t.Errorf("%s: %v", spec, err)
		} else if p := source.Acceleration(&typed); len(p.Problems) != 0 || len(p.From) != len(typed.Spec.From) || len(p.To) != len(typed.Spec.To) || len(p.Ports) != len(typed.Spec.Ports) {
			t.Errorf("%s: the agent reads %+v", spec, p)
		}
	}
	selecting := func(selector string) string { return "{from: [" + all + "], to: [{podSelector: " + selector + "}]}" }
	for spec, says := range map[string]string{
		"{}":                                         "spec.from: Required value",
		"{from: [" + web + "]}":                      "spec.to: Required value",
		"{from: [" + web + "], to: []}":              "should have at least 1 items",
		"{from: [], to: [" + web + "]}":              "should have at least 1 items",
		"{from: [{}], to: [" + all + "]}":            "must validate one and only one schema (oneOf)",
		"{from: [{node: false}], to: [" + all + "]}": `supported values: "true"`,
		"{from: [{node: true, podSelector: {}}], to: [" + all + "]}":               "must validate one and only one schema (oneOf)",
		"{from: [{node: true}], to: [" + web + ", {node: true}]}":                  "not in both: write a policy for each",
		"{from: " + list(web, 9) + ", to: [" + all + "]}":                          "must have at most 8 items",
		"{from: [" + all + "], to: [" + all + "], ports: []}":                      "should have at least 1 items",
		"{from: [" + all + "], to: [" + all + "], ports: [0]}":                     "greater than or equal to 1",
		"{from: [" + all + "], to: [" + all + "], ports: [65536]}":                 "less than or equal to 65535",
		"{from: [" + all + "], to: [" + all + "], ports: [http]}":                  "must be of type integer",
		"{from: [" + all + "], to: [" + all + "], ports: [80, 80]}":                "Duplicate value",
		"{from: [" + all + "], to: [" + all + "], ports: " + list("1", 17) + "}":   "must have at most 16 items",
		"{from: [" + all + "], to: [" + all + "], port: [80]}":                     `unknown field "spec.port"`,
		"{from: [{namespaceSelector: {}}], to: [" + all + "]}":                     `unknown field "spec.from[0].namespaceSelector"`,
		selecting("{matchLabels: {app: 'a b'}}"):                                   "should match",
		selecting("{matchLabels: {'a b': x}}"):                                     "a label is named like app",
		selecting("{matchLabels: {app: 7}}"):                                       "must be of type string",
		selecting("{matchExpressions: [{key: 'a b', operator: Exists}]}"):          "should match",
		selecting("{matchExpressions: [{key: a, operator: Like, values: [b]}]}"):   "supported values",
		selecting("{matchExpressions: [{key: a, operator: In}]}"):                  "In and NotIn need values",
		selecting("{matchExpressions: [{key: a, operator: Exists, values: [b]}]}"): "Exists and DoesNotExist have none",
	} {
		if _, err := create(spec); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", spec, err, says)
		}
	}
}
