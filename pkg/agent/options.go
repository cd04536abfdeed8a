package agent

import (
	"fmt"

	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/optout"
)

// options are those that only other packages understand.
type options struct {
	facts          lb.Facts
	namespaceQuota lb.Quota
	rules          optout.Rules
}

func parseOptions(cfg *config.Config) (o options, err error) {
	if o.facts, err = factsOf(cfg); err != nil {
		return o, err
	}
	if o.namespaceQuota, err = lb.ParseQuota(cfg.NamespaceQuota); err != nil {
		return o, fmt.Errorf("option namespace-quota: %w", err)
	}
	if o.rules, err = rulesOf(cfg); err != nil {
		return o, err
	}
	return o, podnetwork.Check(cfg)
}

func factsOf(cfg *config.Config) (lb.Facts, error) {
	algorithm, err := lb.ParseAlgorithm(cfg.Algorithm)
	if err != nil {
		return lb.Facts{}, fmt.Errorf("option algorithm: %w", err)
	}
	external, err := lb.ParseExternalIPs(cfg.ExternalIPs)
	if err != nil {
		return lb.Facts{}, fmt.Errorf("option external-ips: %w", err)
	}
	direct, err := lb.ParseDirect(cfg.DSR)
	if err != nil {
		return lb.Facts{}, fmt.Errorf("option dsr: %w", err)
	}
	quota, err := lb.ParseQuota(cfg.ServiceQuota)
	if err != nil {
		return lb.Facts{}, fmt.Errorf("option service-quota: %w", err)
	}
	return lb.Facts{
		Quota: quota, Proxies: podnetwork.ProxyNames(cfg), Algorithm: algorithm, ExternalIPs: external, Direct: direct, AcceptDirect: cfg.AcceptsDSR(), VIPPing: cfg.VIPPing == "true",
		NodeExternalIPs: cfg.NodeExternalIPs == "true", NodePorts: cfg.NodePorts(),
		RuntimePorts: cfg.PodNetwork == "main" && cfg.Source == config.Kubernetes,
	}, nil
}
