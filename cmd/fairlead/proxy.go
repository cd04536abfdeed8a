package main

import (
	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/podnet"
)

// proxyNames returns the names of the proxies that pods may choose among; nil where pods have their network from another.
func proxyNames(cfg *config.Config) []string {
	if cfg.PodNetwork != "main" {
		return nil
	}
	names := []string{}
	for _, p := range cfg.Proxies() {
		names = append(names, p.Name)
	}
	return names
}

// traits returns how a pod is to be treated. Until the sources are read that is as before. A Pod may be heard of later than its
// runtime makes it; where it may turn out to have a proxy it opens no connection until then, so none goes past the proxy.
func (a *agent) traits(pod cni.Pod, asked *cni.Bandwidth, was *podnet.Traits) podnet.Traits {
	name := model.Name{Namespace: pod.Namespace, Name: pod.Name}
	select {
	case <-a.store.Synced():
	default:
		if was != nil {
			return *was
		}
		return podnet.Traits{Proxy: a.unknownProxy(pod), Rates: a.rates(name, pod.UID, asked)}
	}
	traits := podnet.Traits{Unchecked: a.store.Unchecked(name, pod.UID), Rates: a.rates(name, pod.UID, asked)}
	traits.BBR = a.wantsBBR(a.store.Rates(name, pod.UID).BBR)
	switch asked, known := a.store.Proxy(name, pod.UID); {
	case !known:
		traits.Proxy = a.unknownProxy(pod)
	case asked != "" && a.cfg.PodNetwork == "main":
		traits.Proxy = proxyOf(a.cfg, asked)
	}
	return traits
}

// rates returns those of a pod, which are its annotations', or until it is heard of what its runtime has read there; none where pods
// are not kept to any. What a runtime asks for is held to the same limits, which not each does by itself.
func (a *agent) rates(name model.Name, uid string, asked *cni.Bandwidth) maps.Rates {
	if a.cfg.Bandwidth != "true" {
		return maps.Rates{}
	}
	r := a.store.Rates(name, uid)
	if !r.Known && asked != nil {
		r.Egress, r.Ingress = model.ReasonableRate(asked.EgressRate), model.ReasonableRate(asked.IngressRate)
	}
	return ratesOf(name.Namespace, r)
}

// ratesOf returns the rates of a pod as the programs have them, by the byte.
func ratesOf(namespace string, r model.Rates) maps.Rates {
	share := maps.Share{OfNamespace: r.OfNamespace / 8, OfNode: r.OfNode / 8}
	if share.OfNamespace > 0 {
		share.Namespace = namespace
	}
	class := map[model.Class]maps.Class{model.Burstable: maps.Burstable, model.Guaranteed: maps.Guaranteed, model.BestEffort: maps.BestEffort}[r.Class]
	return maps.Rates{Out: r.Egress / 8, In: r.Ingress / 8, Share: share, Class: class}
}

// unknownProxy returns what holds for a pod of which nothing but its name is known: files need not tell of every pod.
func (a *agent) unknownProxy(pod cni.Pod) maps.Proxy {
	return maps.Proxy{Asked: pod.Name != "" && a.cfg.Source == config.Kubernetes && len(a.cfg.Proxies()) > 0}
}

// proxyOf returns the proxy of a name. What has none of the name is handed to nobody, which is what it asks for less than
// anything else but for going on alone.
func proxyOf(cfg *config.Config, name string) maps.Proxy {
	for _, p := range cfg.Proxies() {
		if p.Name == name {
			return maps.Proxy{Asked: true, Port: p.Port, Optional: p.Optional}
		}
	}
	return maps.Proxy{Asked: true}
}

// addProxies adds to a status which proxies there are, and how many pods have them.
func (a *agent) addProxies(s *observe.PodNetworkStatus, pods map[uint16]int) {
	for _, p := range a.cfg.Proxies() {
		s.Proxies = append(s.Proxies, observe.ProxyStatus{Name: p.Name, Port: p.Port, Optional: p.Optional, Pods: pods[p.Port]})
	}
	s.Unproxied = pods[0]
	if err := a.path.ProxyWay(); err != nil {
		s.ProxyError = err.Error()
	}
}
