package policies

import (
	"fmt"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

// TestCreatedAgain checks that a pod which is created again under its name, as those of a StatefulSet are, never gets the verdicts
// of the one before it: everything is denied to it until its labels are known.
func TestCreatedAgain(t *testing.T) {
	name := model.Name{Namespace: "n", Name: "web"}
	r := newRig(t)
	r.uid = "old"
	r.sync()
	deliver := func(uid, app string) {
		r.store.ReplacePods([]*model.Pod{{Name: name, UID: uid, Labels: map[string]string{"app": app}}})
		r.step()
		r.ReplacePods([]*model.PolicyPod{peer("batch")}) // which a policy may need now
		r.step()
	}
	p := isolate("client") // a pod with app=open is none of its subjects
	p.Subject.Pods = model.Selector{{Label: "app", Operator: model.In, Values: []string{"web"}}}
	r.listPolicies(p)
	deliver("old", "open")
	if _, has := r.tables.Pods[web]; !has || r.Judged(name, "old", true) {
		t.Fatalf("a pod that no policy is about is judged, or not known: %v", r.tables.Pods)
	}
	if !r.Judged(name, "new", false) {
		t.Error("a new pod has the verdicts of the one before it while its device is made")
	}
	decided := r.decided
	r.uid = "new"
	r.step()
	if _, has := r.tables.Pods[web]; has || !r.Judged(name, "new", false) || r.decided == decided {
		t.Errorf("the device of a new pod has the verdicts of the one before it: %v", r.tables.Pods)
	}
	deliver("new", "web")
	if row := r.tables.Pods[web]; row.Subject == 0 || !r.Judged(name, "new", false) || !r.Judged(name, "old", false) {
		t.Errorf("the new pod is not judged by its own labels: %+v", row)
	}
	r.accepts(false)
	r.uid = "old" // the device of one that is gone, or comes late
	r.step()
	if _, has := r.tables.Pods[web]; has {
		t.Error("the device of an old pod has the verdicts of the new one")
	}
	r.uid = "" // a runtime that does not say
	r.step()
	r.accepts(false)
	r.uid = "new"
	deliver("new", "open")
	if r.Judged(name, "new", true) || !r.Judged(name, "old", false) {
		t.Error("only the pod that no policy is about is let go unjudged")
	}
	r.uid = ""
	r.step()
	decided = r.decided
	r.uid = "new"
	if r.step(); r.decided == decided {
		t.Error("nobody is told of a device of another UID")
	}
	r.store.ReplacePods([]*model.Pod{{Name: name, UID: "mirror", LocalUID: "new", Labels: map[string]string{"app": "web"}}})
	r.step()
	r.ReplacePods(nil)
	r.step()
	if row := r.tables.Pods[web]; row.Subject == 0 {
		t.Error("a static pod is not known by the UID of its node")
	}
	r.store.ReplacePods([]*model.Pod{{Name: name, Labels: map[string]string{"app": "web"}}})
	if r.step(); r.tables.Pods[web].Subject == 0 {
		t.Error("a pod whose manifest has no UID is not known by its name")
	}
}

// What a pod of another node costs must not depend on how many policies, namespaces and nodes there are: in a large
// cluster a hundred of them change in a second.
func TestPodElsewhereCostsTheSame(t *testing.T) {
	cost := func(many int) float64 {
		r := newRig(t)
		var nodes []*model.Node
		var namespaces []*model.Namespace
		var list []*model.NetworkPolicy
		for i := range many {
			nodes = append(nodes, &model.Node{Name: fmt.Sprint("node", i)})
			namespaces = append(namespaces, &model.Namespace{Name: fmt.Sprint("n", i)})
			p := *isolate("client")
			p.Name = model.Name{Namespace: fmt.Sprint("n", i), Name: "p"}
			list = append(list, &p)
		}
		r.sync()
		r.store.ReplaceNodes(nodes)
		r.store.ReplaceNamespaces(append(namespaces, &model.Namespace{Name: "n"}))
		r.listPolicies(append(list, isolate("client"))...)
		r.step()
		r.ReplacePods([]*model.PolicyPod{peer("client")})
		r.step()
		r.accepts(true)
		n := 0
		return testing.AllocsPerRun(20, func() {
			n++
			r.SetPod(peer([]string{"client", "batch"}[n%2]))
			r.step()
		})
	}
	few, many := cost(10), cost(1000)
	if t.Logf("%.0f allocations beside 10 policies, %.0f beside 1000", few, many); many > few+10 {
		t.Errorf("a pod costs %.0f allocations beside 10 policies, and %.0f beside 1000", few, many)
	}
}
