package podnetwork

import (
	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/podnet"
)

// ProxyNames returns the names of the proxies that pods may choose, or nil unless
// --pod-network=main.
func ProxyNames(cfg *config.Config) []string {
	if cfg.PodNetwork != "main" {
		return nil
	}
	names := []string{}
	for _, p := range cfg.Proxies() {
		names = append(names, p.Name)
	}
	return names
}

// traits returns how to treat a pod. Until the sources have synced, a pod keeps the traits that it
// had. The runtime may create a pod before the agent hears of it. A pod that may turn out to have a
// proxy opens no connection until then, so that none bypasses the proxy.
func (n *Network) traits(pod cni.Pod, asked *cni.Bandwidth, was *podnet.Traits) podnet.Traits {
	name := model.Name{Namespace: pod.Namespace, Name: pod.Name}
	select {
	case <-n.Store.Synced():
	default:
		if was != nil {
			traits := *was
			traits.Policy = n.judged(pod, was)
			return traits
		}
		return podnet.Traits{Proxy: n.unknownProxy(pod), Policy: n.judged(pod, nil), Rates: n.rates(name, pod.UID, asked)}
	}
	traits := podnet.Traits{Policy: n.judged(pod, was), Unchecked: n.Store.Unchecked(name, pod.UID), Rates: n.rates(name, pod.UID, asked)}
	traits.BBR = n.wantsBBR(n.Store.Rates(name, pod.UID).BBR)
	switch asked, known := n.Store.Proxy(name, pod.UID); {
	case !known:
		traits.Proxy = n.unknownProxy(pod)
	case asked != "" && n.Options.PodNetwork == "main":
		traits.Proxy = proxyOf(n.Options, asked)
	}
	return traits
}

// rates returns the rates of a pod: those in its annotations or, until the agent hears of it, those
// that its runtime read there, held to the same limits because not every runtime checks them. It
// returns none with --bandwidth=false.
func (n *Network) rates(name model.Name, uid string, asked *cni.Bandwidth) maps.Rates {
	if n.Options.Bandwidth != "true" {
		return maps.Rates{}
	}
	r := n.Store.Rates(name, uid)
	if !r.Known && asked != nil {
		r.Egress, r.Ingress = model.ReasonableRate(asked.EgressRate), model.ReasonableRate(asked.IngressRate)
	}
	return ratesOf(name.Namespace, r)
}

// ratesOf converts the rates of a pod to the programs' form, in bytes.
func ratesOf(namespace string, r model.Rates) maps.Rates {
	share := maps.Share{OfNamespace: r.OfNamespace / 8, OfNode: r.OfNode / 8}
	if share.OfNamespace > 0 {
		share.Namespace = namespace
	}
	class := map[model.Class]maps.Class{model.Burstable: maps.Burstable, model.Guaranteed: maps.Guaranteed, model.BestEffort: maps.BestEffort}[r.Class]
	return maps.Rates{Out: r.Egress / 8, In: r.Ingress / 8, Share: share, Class: class}
}

// unknownProxy returns the proxy of a pod of which only the name is known. It may have one, except
// with files as the source, because they need not list every pod.
func (n *Network) unknownProxy(pod cni.Pod) maps.Proxy {
	return maps.Proxy{Asked: pod.Name != "" && n.Options.Source == config.Kubernetes && len(n.Options.Proxies()) > 0}
}

// proxyOf returns the proxy with the given name. If there is none, connections of the pod go
// nowhere, because bypassing the proxy is what the pod wants least.
func proxyOf(cfg *config.Config, name string) maps.Proxy {
	for _, p := range cfg.Proxies() {
		if p.Name == name {
			return maps.Proxy{Asked: true, Port: p.Port, Optional: p.Optional}
		}
	}
	return maps.Proxy{Asked: true}
}

// addProxies adds the proxies, and how many pods use each, to a status.
func (n *Network) addProxies(s *podnet.Status, pods map[uint16]int) {
	for _, p := range n.Options.Proxies() {
		s.Proxies = append(s.Proxies, podnet.ProxyStatus{Name: p.Name, Port: p.Port, Optional: p.Optional, Pods: pods[p.Port]})
	}
	s.Unproxied = pods[0]
	if err := n.Path.ProxyWay(); err != nil {
		s.ProxyError = err.Error()
	}
}
