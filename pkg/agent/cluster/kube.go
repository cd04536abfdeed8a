package cluster

import (
	"log/slog"
	"path/filepath"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
	"fairlead.io/fairlead/pkg/source/kube"
)

type kubeSource struct{ *kube.Source }

// ServersFile is where the cluster's API servers are remembered.
func ServersFile(cfg *config.Config) string { return filepath.Join(cfg.StateDir, "api-servers") }

func newKubeSource(cfg *config.Config, store *model.Store, pods source.PodReceiver, version string, log *slog.Logger) (Source, API, error) {
	src, err := kube.New(kube.Config{
		Kubeconfig: cfg.Kubeconfig, Servers: cfg.Servers(), ServersFile: ServersFile(cfg),
		NodeName: cfg.NodeName, Accelerations: cfg.Sockmap == "true", ServiceCIDRs: cfg.ServiceCIDRs == "auto", PodsOnly: cfg.AcceleratesOnly(), Policies: cfg.FollowsPolicies(), ClusterPods: pods, PodSlices: cfg.PolicyPods == "slices", Version: version, Store: store, Log: log,
	})
	if err != nil {
		return nil, API{}, err
	}
	api := API{Events: src.Events(), Node: src.Node(), policies: src.Policies()}
	if cfg.FollowsPolicies() {
		api.policies, api.NeedPods, api.PodsError = nil, src.NeedClusterPods, src.ClusterPodsError
	}
	return kubeSource{src}, api, nil
}

func (s kubeSource) State() source.Status {
	state := s.Status()
	status := source.Status{Server: state.Server, Configured: state.Configured}
	for _, k := range state.Kinds {
		if k.Changed.After(status.LastChange) {
			status.LastChange = k.Changed
		}
		if k.Error != "" {
			status.Errors = append(status.Errors, source.StatusError{Where: k.Kind, Message: k.Error})
		}
	}
	return status
}

func (s kubeSource) Sample() metrics.Source {
	sample := metrics.Source{EventsDropped: s.Events().Dropped()}
	for _, k := range s.Status().Kinds {
		kind := metrics.Kind{Name: k.Kind, Synced: k.Synced, Lists: k.Relists, Failures: k.Failures}
		if k.Synced {
			kind.Lists++ // the first list, which Relists does not count
		}
		sample.Kinds = append(sample.Kinds, kind)
		if k.Error != "" {
			sample.Errors++
		}
		if k.Changed.After(sample.LastChange) {
			sample.LastChange = k.Changed
		}
	}
	return sample
}
