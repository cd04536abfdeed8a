package source

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestSelectorsAsKubernetesHasThem checks that a selector selects what Kubernetes' own code says,
// whatever it is made of.
func TestSelectorsAsKubernetesHasThem(t *testing.T) {
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	one := func(list ...string) string { return list[random.IntN(len(list))] }
	sets := make([]map[string]string, 0, 60)
	for range 60 {
		set := map[string]string{}
		for range random.IntN(4) {
			set[one("a", "b", "example.com/c")] = one("", "x", "y", "7", "12", "-3", "99999999999999999999", "1x")
		}
		sets = append(sets, set)
	}
	counts := map[bool]int{}
	for range 3000 {
		var parts []string
		for range random.IntN(4) {
			label := one("a", "b", "example.com/c")
			parts = append(parts, one(
				label+"="+one("", "x", "7"), label+"=="+one("x", "y"), label+"!="+one("x", ""), label, "!"+label, label+" in ("+one("x", "x,y", "y,,7")+")",
				label+" notin ("+one("x", "7,y")+")", label+">"+one("5", "12"), label+"<"+one("7", "8"),
			))
		}
		text := strings.Join(parts, one(",", ", "))
		want, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		selector, err := ParseSelector(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, set := range sets {
			got := selector.Selects(set)
			if got != want.Matches(labels.Set(set)) {
				t.Fatalf("%q of %v: %v", text, set, got)
			}
			counts[got]++
		}
	}
	if counts[true] < 10000 || counts[false] < 10000 {
		t.Errorf("selected and not selected: %v", counts)
	}
}

func TestPodSelector(t *testing.T) {
	expression := func(key string, operator metav1.LabelSelectorOperator, values ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: values}
	}
	long := make([]string, 33)
	for i := range long {
		long[i] = fmt.Sprint("v", i)
	}
	many := map[string]string{}
	for i := range 17 {
		many[fmt.Sprint("k", i)] = "v"
	}
	web := map[string]string{"app": "web", "tier": "a"}
	for _, tt := range []struct {
		name string
		in   metav1.LabelSelector
		web  bool
		says string
	}{
		{"all", metav1.LabelSelector{}, true, ""},
		{"labels", metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "tier": "a"}}, true, ""},
		{"other labels", metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "tier": "b"}}, false, ""},
		{"one of several values", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{expression("app", "In", "db", "web")}}, true, ""},
		{"none of several values", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{expression("app", "NotIn", "db", "web")}}, false, ""},
		{"a label that is there", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{expression("app", "Exists")}}, true, ""},
		{"a label that is not", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{expression("app", "DoesNotExist")}}, false, ""},
		{"a bad label", metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}, false, "name part must consist of"},
		{"a bad value", metav1.LabelSelector{MatchLabels: map[string]string{"a": "b c"}}, false, "a valid label must be"},
		{"a bad operator", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{expression("a", "Like", "b")}}, false, "not a valid label selector operator"},
		{"no values", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{expression("a", "In")}}, false, "values set can't be empty"},
		{"too many values", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{expression("a", "In", long...)}}, false, "matchExpressions[0] has 33 values, at most 32 are allowed"},
		{"too many labels", metav1.LabelSelector{MatchLabels: many}, false, "it has 17 requirements, at most 16 are allowed"},
	} {
		selector, err := podSelector(&tt.in)
		if (err != nil) != (tt.says != "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: error %v, want one with %q", tt.name, err, tt.says)
		} else if err == nil && selector.Selects(web) != tt.web {
			t.Errorf("%s: %v gives %v", tt.name, selector, !tt.web)
		}
	}
}

// TestSelectorsAreOrdered checks that the same selector is always equal, whatever the iteration
// order of maps.
func TestSelectorsAreOrdered(t *testing.T) {
	in := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "1", "b": "2", "c": "3"}, MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "a", Operator: "Exists"}, {Key: "a", Operator: "In", Values: []string{"2", "1"}}, {Key: "a", Operator: "In", Values: []string{"1"}},
	}}
	first, err := podSelector(in)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		again, err := podSelector(in)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(first) {
			t.Fatalf("%v, then %v, %v", first, again, err)
		}
	}
	if !slices.Equal(first[0].Values, []string{"1"}) || first[0].Label != "a" {
		t.Errorf("%v", first)
	}
}

func TestParseSelectorErrors(t *testing.T) {
	for _, text := range []string{"app in web", "=", "a=b c", "a in ()b", "app>x"} {
		if _, err := ParseSelector(text); err == nil || !strings.HasPrefix(err.Error(), "parse selector: ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
