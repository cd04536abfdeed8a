package cluster

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/model"
	objects "fairlead.io/fairlead/pkg/source"
)

// TestAnnotationWatch checks that a problem is reported once while it lasts, to the object that has
// it; problems that do not concern this agent are not reported.
func TestAnnotationWatch(t *testing.T) {
	store, reported := model.NewStore("node-a"), []string{}
	w := &AnnotationWatch{store: store, log: slog.New(slog.DiscardHandler), report: func(key model.Key, uid string, p model.Problem) {
		reported = append(reported, key.String()+" "+uid+" "+p.Message)
	}}
	pod := func(uid string, problems ...model.Problem) {
		store.SetPod(&model.Pod{Name: model.Name{Namespace: "shop", Name: "web"}, UID: uid, LocalUID: uid, Problems: problems})
	}
	wrong, others := model.Problem{Reason: objects.InvalidAccelerate, Message: "wrong"}, model.Problem{Reason: "InvalidSocketLB", Message: "else"}
	step := func(what string, problems int, want ...string) {
		t.Helper()
		reported = []string{}
		w.scan()
		w.scan()
		if diff := cmp.Diff(append([]string{}, want...), reported); diff != "" {
			t.Errorf("%s (-want +reported):\n%s", what, diff)
		}
		if found := w.Problems(); len(found) != problems {
			t.Errorf("%s: %v", what, found)
		}
		if left := store.TakeDirty(); len(left) > 0 {
			t.Errorf("%s: %v is left to be compiled", what, left)
		}
	}
	pod("1", others)
	step("others' business", 0)
	pod("1", others, wrong)
	step("wrong", 1, "pod:shop/web 1 wrong")
	pod("2", wrong)
	step("a successor", 1, "pod:shop/web 2 wrong")
	pod("2")
	step("well", 0)
	pod("2", wrong)
	step("wrong again", 1, "pod:shop/web 2 wrong")
	store.SetNamespace(&model.Namespace{Name: "shop", Problems: []model.Problem{wrong}})
	step("a namespace", 2)
	if have := w.Problems()[1]; have != (model.ObjectProblem{Object: "namespace:shop", Problem: model.Problem{Reason: wrong.Reason, Message: "wrong"}}) {
		t.Errorf("%+v", have)
	}
}
