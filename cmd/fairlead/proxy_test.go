package main

import (
	"testing"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/podnet"
)

// Where there are proxies a pod goes past none before it is known what it asks for, and a name that is not known leads nowhere.
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
		{"a new pod at a start", config.Kubernetes, "mesh=15001", web, nil, false, nothing, unknown},
		{"one of before at a start", config.Kubernetes, "mesh=15001", web, &mesh, false, nothing, mesh},
		{"one of before without a proxy at a start", config.Kubernetes, "mesh=15001", web, &free, false, nothing, free},
		{"a pod that is not heard of yet", config.Kubernetes, "mesh=15001", web, nil, true, nothing, unknown},
		{"the pod before it", config.Kubernetes, "mesh=15001", cni.Pod{Namespace: "shop", Name: "web", UID: "two"}, nil, true, known(""), unknown},
		{"a pod without a name", config.Kubernetes, "mesh=15001", cni.Pod{}, nil, true, nothing, free},
		{"a pod of which no file tells", "/etc/manifests", "mesh=15001", web, nil, true, nothing, free},
		{"where there are no proxies", config.Kubernetes, "", web, nil, false, nothing, free},
		{"and it is not heard of", config.Kubernetes, "", web, &unknown, true, nothing, free},
		{"a pod that asks for none", config.Kubernetes, "mesh=15001", web, &mesh, true, known(""), free},
		{"one that asks", config.Kubernetes, "mesh=15001,audit=15002:pass", web, nil, true, known("mesh"), mesh},
		{"one that asks for another", config.Kubernetes, "mesh=15001,audit=15002:pass", web, &mesh, true, known("audit"), audit},
		{"one that asks for who is not there", config.Kubernetes, "mesh=15001", web, &mesh, true, known("audit"), unknown},
		{"one that asks where there are none", config.Kubernetes, "", web, nil, true, known("mesh"), unknown},
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
		a := &agent{cfg: &config.Config{Source: tt.source, PodNetwork: "main", L7Proxies: tt.proxies}, store: store}
		if got := a.traits(tt.pod, nil, tt.was); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	store := model.NewStore("node")
	known("mesh")(store)
	for _, network := range []string{"chained", "off"} {
		cfg := &config.Config{PodNetwork: network}
		if names := proxyNames(cfg); names != nil {
			t.Errorf("%s: proxies are %q", network, names)
		}
	}
}

// A pod has the rate of its annotation once it is heard of, where there are rates.
func TestTraitsRate(t *testing.T) {
	store := model.NewStore("node")
	name := model.Name{Namespace: "shop", Name: "web"}
	web, before, was := cni.Pod{Namespace: "shop", Name: "web", UID: "one"}, cni.Pod{Namespace: "shop", Name: "web", UID: "zero"}, podnet.Traits{Rates: maps.Rates{Out: 5}}
	a := &agent{cfg: &config.Config{Source: config.Kubernetes, PodNetwork: "main", Bandwidth: "true"}, store: store}
	want := func(what string, pod cni.Pod, rate uint64) {
		t.Helper()
		if got := a.traits(pod, nil, &was); got.Out != rate {
			t.Errorf("%s: %d bytes a second, want %d", what, got.Out, rate)
		}
	}
	asked := &cni.Bandwidth{EgressRate: 16e6, IngressRate: 32e6}
	if got := a.traits(web, asked, nil).Rates; got != (maps.Rates{Out: 2e6, In: 4e6}) {
		t.Errorf("before anything is heard of it it has %+v, and not what its runtime asks for", got)
	}
	for _, bits := range []uint64{1, 999, 1e15 + 1, 1 << 63} {
		if got := a.traits(web, &cni.Bandwidth{EgressRate: bits, IngressRate: bits}, nil).Rates; got != (maps.Rates{}) {
			t.Errorf("its runtime asks for %d bits a second, and it has %+v", bits, got)
		}
	}
	store.SetPod(&model.Pod{Name: name, UID: "one", Egress: 10e6})
	want("at a start", web, 5)
	store.ReplaceServices(nil)
	store.ReplaceSlices(nil)
	store.ReplaceNodes(nil)
	store.ReplaceNamespaces(nil)
	store.ReplacePods(store.Pods())
	want("known", web, 1.25e6)
	if got := a.traits(web, asked, &was).Rates; got != (maps.Rates{Out: 1.25e6}) {
		t.Errorf("known it has %+v, which its annotations do not say", got)
	}
	if got := a.traits(before, asked, &was).Rates; got != (maps.Rates{Out: 2e6, In: 4e6}) {
		t.Errorf("while another of its name is known it has %+v", got)
	}
	want("the pod before it", before, 0)
	store.SetPod(&model.Pod{Name: name, UID: "one", Egress: 20e6})
	want("changed", web, 2.5e6)
	store.SetPod(&model.Pod{Name: name, UID: "one"})
	want("removed", web, 0)
	store.SetPod(&model.Pod{Name: name, UID: "one", Ingress: 8e6, Class: model.BestEffort})
	store.SetNamespace(&model.Namespace{Name: "shop", Egress: 40e6})
	store.SetNode(&model.Node{Name: "node", Egress: 80e6})
	store.SetNode(&model.Node{Name: "other", Egress: 8e6})
	shared := maps.Rates{In: 1e6, Class: maps.BestEffort, Share: maps.Share{Namespace: "shop", OfNamespace: 5e6, OfNode: 10e6}}
	if got := a.traits(web, nil, &was); got.Rates != shared {
		t.Errorf("shared with others: %+v, want %+v", got.Rates, shared)
	}
	if got := a.traits(before, nil, &was); got.Share != shared.Share || got.Class != maps.Burstable {
		t.Errorf("the pod before it shares %+v", got.Rates)
	}
	store.SetNamespace(&model.Namespace{Name: "shop"})
	if got := a.traits(web, nil, &was); got.Share != (maps.Share{OfNode: 10e6}) {
		t.Errorf("with the node alone it shares %+v", got.Share)
	}
	for _, c := range []struct {
		says   model.Choice
		among  string // whom BBR is for
		lacks  string
		wanted bool
	}{
		{model.Unsaid, "true", "", true}, {model.Yes, "true", "", true}, {model.No, "true", "", false},
		{model.Unsaid, "annotated", "", false}, {model.Yes, "annotated", "", true}, {model.No, "annotated", "", false},
		{model.Yes, "true", "the kernel has none", false},
	} {
		a.cfg.BBR, a.bbr = c.among, &observe.BBRStatus{Error: c.lacks}
		store.SetPod(&model.Pod{Name: name, UID: "one", BBR: c.says})
		if got := a.traits(web, nil, &was).BBR; got != c.wanted {
			t.Errorf("BBR is for %s, the pod says %d, it lacks %q: %t", c.among, c.says, c.lacks, got)
		}
	}
	a.cfg.BBR, a.bbr = "false", nil
	if a.traits(web, nil, &was).BBR {
		t.Error("a pod has BBR that is for nobody")
	}
	a.cfg.Bandwidth = "false"
	store.SetPod(&model.Pod{Name: name, UID: "one", Egress: 20e6})
	want("where there are none", web, 0)
}
