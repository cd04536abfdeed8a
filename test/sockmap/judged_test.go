package sockmap

import (
	"log/slog"
	"sync/atomic"
	"testing"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/sockmap"
)

// TestExpel checks that no message of a pod bypasses TCP once it was expelled because a policy is about it,
// also while it is not known which pods may take part, and that nothing is lost.
func TestExpel(t *testing.T) {
	for name, deliver := range map[string]func(*model.Store){
		"all known":         func(s *model.Store) { s.ReplaceAccelerations(nil) },
		"policies not read": func(*model.Store) {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTwoPods(t, sockmap.DefaultLimits())
			store := model.NewStore("node")
			store.ReplaceServices(nil)
			store.ReplaceSlices(nil)
			store.ReplaceNodes([]*model.Node{{Name: "node"}})
			store.ReplaceNamespaces([]*model.Namespace{{Name: "n"}})
			cookies := map[string]uint64{"client": w.Cookie(w.pods[0]), "server": w.Cookie(w.pods[1])}
			var pods []*model.Pod
			for name := range cookies {
				pods = append(pods, &model.Pod{Name: model.Name{Namespace: "n", Name: name}, Accelerate: model.Yes})
			}
			store.ReplacePods(pods)
			deliver(store)
			var judged atomic.Bool
			rules := sockmap.NewRuleController(sockmap.RuleConfig{
				Sockmap: w.Sockmap, Store: store, Log: slog.New(slog.DiscardHandler), Limited: func(*model.Pod) bool { return false },
				Judged: func(pod model.Name) (bool, bool) { return judged.Load() && pod.Name == "server", true },
				Namespaces: func() func(*model.Pod) ([]uint64, error) {
					return func(pod *model.Pod) ([]uint64, error) { return []uint64{cookies[pod.Name.Name]}, nil }
				},
			})
			w.Must(rules.Expel())
			c := w.dial(server4)
			c.ask(20, 100)
			w.Until("admission", func() bool { return w.only().State == "accelerated" })
			c.ask(100, 100)

			judged.Store(true)
			w.Must(rules.Expel())
			before := w.only()
			if before.State != "excluded" || before.Exclusion != "rules" {
				t.Errorf("right after it was expelled: %+v", before)
			}
			c.ask(100, 100)
			if after := w.only(); after.Redirected != before.Redirected {
				t.Errorf("%v bytes went past TCP, and %v before it was expelled", after.Redirected, before.Redirected)
			}
			judged.Store(false)
			if name != "all known" {
				return
			}
			w.Must(rules.Expel())
			w.Until("it to be taken back", func() bool { c.ask(20, 100); return w.only().State == "accelerated" })
		})
	}
}
