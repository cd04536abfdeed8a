package reconcile

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/model"
)

// Health checks follow the Service's policy and this node's endpoints, and are reported only when
// they change.
func TestChecked(t *testing.T) {
	store := model.NewStore("node1")
	r := start(t, store, NewMemory(small), nil)
	var reported [][]lb.HealthCheck
	r.cfg.Checked = func(key model.Key, uid string, checks []lb.HealthCheck) {
		if key.String() != "shop/web" || uid != "a" && len(checks) > 0 {
			t.Errorf("reported %s, %q", key, uid)
		}
		reported = append(reported, append([]lb.HealthCheck(nil), checks...))
	}
	local, cluster := web("10.96.0.1"), web("10.96.0.1")
	local.ExternalLocal, local.HealthCheckNodePort = true, 32000
	four := func(port uint16, endpoints int) []lb.HealthCheck {
		return []lb.HealthCheck{{Family: model.IPv4, Port: port, Endpoints: endpoints}}
	}
	terminating := webSlice("10.1.0.1")
	terminating.Endpoints[0].Conditions = model.Serving | model.Terminating
	deliver(store, nil, nil)
	for _, step := range []struct {
		name string
		do   func()
		want [][]lb.HealthCheck
	}{
		{"no endpoints", func() { store.SetService(local) }, [][]lb.HealthCheck{four(32000, 0)}},
		{"two", func() { store.SetSlice(webSlice("10.1.0.1", "10.1.0.2")) }, [][]lb.HealthCheck{four(32000, 2)}},
		{"other two", func() { store.SetSlice(webSlice("10.1.0.1", "10.1.0.3")) }, nil},
		{"one that terminates", func() { store.SetSlice(terminating) }, [][]lb.HealthCheck{four(32000, 0)}},
		{"another policy", func() { store.SetService(cluster) }, [][]lb.HealthCheck{nil}},
		{"and back", func() { store.SetService(local) }, [][]lb.HealthCheck{four(32000, 0)}},
		{"no Service", func() { store.DeleteService(local.Name) }, [][]lb.HealthCheck{nil}},
	} {
		reported = nil
		step.do()
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, reported); diff != "" {
			t.Errorf("%s (-want +have):\n%s", step.name, diff)
		}
	}
}
