package podnetwork

import (
	"testing"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/congestion"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/podnet"
)

// TestTraits checks that if there are proxies, a pod bypasses none before it is known what the pod
// asks for. A proxy with an unknown name leads nowhere.
func TestTraits(t *testing.T) {
	web := cni.Pod{Namespace: "shop", Name: "web", UID: "one"}
	known := func(proxy string) func(*model.Store) {
		return func(s *model.Store) {
			s.SetPod(&model.Pod{Name: model.Name{Namespace: "shop", Name: "web"}, UID: "one", Proxy: proxy})
			s.SetPod(&model.Pod{Name: model.Name{Namespace: "shop", Name: "other"}, UID: "two", Proxy: "audit"})
		}
	}
	nothing := func(*model.Store) {}
	free, unknown := podnet.Traits{}, podnet.Traits{Proxy: maps.Proxy{Asked: true}}
	mesh := podnet.Traits{Proxy: maps.Proxy{Asked: true, Port: 15001}}
	audit := podnet.Traits{Proxy: maps.Proxy{Asked: true, Port: 15002, Optional: true}}
	for _, tt := range []struct {
		name    string
		source  string
		proxies string
		pod     cni.Pod
		was     *podnet.Traits
		synced  bool
		objects func(*model.Store)
		want    podnet.Traits
	}{
		{"a new pod at the start", config.Kubernetes, "mesh=15001", web, nil, false, nothing, unknown},
		{"an earlier pod at the start", config.Kubernetes, "mesh=15001", web, &mesh, false, nothing, mesh},
		{"an earlier pod without a proxy at the start", config.Kubernetes, "mesh=15001", web, &free, false, nothing, free},
		{"a pod that is not known yet", config.Kubernetes, "mesh=15001", web, nil, true, nothing, unknown},
		{"an earlier pod of the same name", config.Kubernetes, "mesh=15001", cni.Pod{Namespace: "shop", Name: "web", UID: "two"}, nil, true, known(""), unknown},
		{"a pod without a name", config.Kubernetes, "mesh=15001", cni.Pod{}, nil, true, nothing, free},
		{"a pod that is in no file", "/etc/manifests", "mesh=15001", web, nil, true, nothing, free},
		{"without proxies", config.Kubernetes, "", web, nil, false, nothing, free},
		{"without proxies, a pod that is not known yet", config.Kubernetes, "", web, &unknown, true, nothing, free},
		{"a pod that asks for no proxy", config.Kubernetes, "mesh=15001", web, &mesh, true, known(""), free},
		{"a pod that asks for a proxy", config.Kubernetes, "mesh=15001,audit=15002:pass", web, nil, true, known("mesh"), mesh},
		{"a pod that asks for another proxy", config.Kubernetes, "mesh=15001,audit=15002:pass", web, &mesh, true, known("audit"), audit},
		{"a pod that asks for an unknown proxy", config.Kubernetes, "mesh=15001", web, &mesh, true, known("audit"), unknown},
		{"without proxies, a pod that asks for one", config.Kubernetes, "", web, nil, true, known("mesh"), unknown},
	} {
		store := model.NewStore("node")
		tt.objects(store)
		if tt.synced {
			store.ReplaceServices(nil)
			store.ReplaceSlices(nil)
			store.ReplaceNodes(nil)
			store.ReplaceNamespaces(nil)
			pods := store.Pods()
			store.ReplacePods(pods)
		}
		n := &Network{Config: Config{Options: &config.Config{Source: tt.source, PodNetwork: "main", L7Proxies: tt.proxies}, Store: store}}
		if got := n.traits(tt.pod, nil, tt.was); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	store := model.NewStore("node")
	known("mesh")(store)
	for _, network := range []string{"chained", "off"} {
		cfg := &config.Config{PodNetwork: network}
		if names := ProxyNames(cfg); names != nil {
			t.Errorf("%s: proxies are %q", network, names)
		}
	}
}

// TestTraitsRate checks that once a pod is known, it has the rate of its annotation, if rates are
// on.
func TestTraitsRate(t *testing.T) {
	store := model.NewStore("node")
	name := model.Name{Namespace: "shop", Name: "web"}
	web, before, was := cni.Pod{Namespace: "shop", Name: "web", UID: "one"}, cni.Pod{Namespace: "shop", Name: "web", UID: "zero"}, podnet.Traits{Rates: maps.Rates{Out: 5}}
	n := &Network{Config: Config{Options: &config.Config{Source: config.Kubernetes, PodNetwork: "main", Bandwidth: "true"}, Store: store}}
	want := func(what string, pod cni.Pod, rate uint64) {
		t.Helper()
		if got := n.traits(pod, nil, &was); got.Out != rate {
			t.Errorf("%s: %d bytes a second, want %d", what, got.Out, rate)
		}
	}
	asked := &cni.Bandwidth{EgressRate: 16e6, IngressRate: 32e6}
	if got := n.traits(web, asked, nil).Rates; got != (maps.Rates{Out: 2e6, In: 4e6}) {
		t.Errorf("before it is known it has %+v, not what its runtime asks for", got)
	}
	for _, bits := range []uint64{1, 999, 1e15 + 1, 1 << 63} {
		if got := n.traits(web, &cni.Bandwidth{EgressRate: bits, IngressRate: bits}, nil).Rates; got != (maps.Rates{}) {
			t.Errorf("its runtime asks for %d bits a second, but it has %+v", bits, got)
		}
	}
	store.SetPod(&model.Pod{Name: name, UID: "one", Egress: 10e6})
	want("at the start", web, 5)
	store.ReplaceServices(nil)
	store.ReplaceSlices(nil)
	store.ReplaceNodes(nil)
	store.ReplaceNamespaces(nil)
	store.ReplacePods(store.Pods())
	want("known", web, 1.25e6)
	if got := n.traits(web, asked, &was).Rates; got != (maps.Rates{Out: 1.25e6}) {
		t.Errorf("once it is known it has %+v, not what its annotations say", got)
	}
	if got := n.traits(before, asked, &was).Rates; got != (maps.Rates{Out: 2e6, In: 4e6}) {
		t.Errorf("while another pod of its name is known it has %+v", got)
	}
	want("an earlier pod of the same name", before, 0)
	store.SetPod(&model.Pod{Name: name, UID: "one", Egress: 20e6})
	want("changed", web, 2.5e6)
	store.SetPod(&model.Pod{Name: name, UID: "one"})
	want("removed", web, 0)
	store.SetPod(&model.Pod{Name: name, UID: "one", Ingress: 8e6, Class: model.BestEffort})
	store.SetNamespace(&model.Namespace{Name: "shop", Egress: 40e6})
	store.SetNode(&model.Node{Name: "node", Egress: 80e6})
	store.SetNode(&model.Node{Name: "other", Egress: 8e6})
	shared := maps.Rates{In: 1e6, Class: maps.BestEffort, Share: maps.Share{Namespace: "shop", OfNamespace: 5e6, OfNode: 10e6}}
	if got := n.traits(web, nil, &was); got.Rates != shared {
		t.Errorf("shared with others: %+v, want %+v", got.Rates, shared)
	}
	if got := n.traits(before, nil, &was); got.Share != shared.Share || got.Class != maps.Burstable {
		t.Errorf("an earlier pod of the same name shares %+v", got.Rates)
	}
	store.SetNamespace(&model.Namespace{Name: "shop"})
	if got := n.traits(web, nil, &was); got.Share != (maps.Share{OfNode: 10e6}) {
		t.Errorf("sharing only with the node, it has %+v", got.Share)
	}
	for _, c := range []struct {
		says   model.Choice
		among  string // whose connections use BBR
		lacks  string
		wanted bool
	}{
		{model.Unsaid, "true", "", true}, {model.Yes, "true", "", true}, {model.No, "true", "", false},
		{model.Unsaid, "annotated", "", false}, {model.Yes, "annotated", "", true}, {model.No, "annotated", "", false},
		{model.Yes, "true", "the kernel has none", false},
	} {
		n.Options.BBR, n.BBR = c.among, &congestion.Status{Error: c.lacks}
		store.SetPod(&model.Pod{Name: name, UID: "one", BBR: c.says})
		if got := n.traits(web, nil, &was).BBR; got != c.wanted {
			t.Errorf("--bbr=%s, the pod asks for %d, it lacks %q: %t", c.among, c.says, c.lacks, got)
		}
	}
	n.Options.BBR, n.BBR = "false", nil
	if n.traits(web, nil, &was).BBR {
		t.Error("a pod has BBR despite --bbr=false")
	}
	n.Options.Bandwidth = "false"
	store.SetPod(&model.Pod{Name: name, UID: "one", Egress: 20e6})
	want("without rates", web, 0)
}
