package cluster

import (
	"log/slog"
	"path/filepath"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/source/kube"
)

type kubeSource struct{ *kube.Source }

// ServersFile is where the cluster's API servers are remembered.
func ServersFile(cfg *config.Config) string { return filepath.Join(cfg.StateDir, "api-servers") }

func newKubeSource(cfg *config.Config, store *model.Store, version string, log *slog.Logger) (Source, API, error) {
	src, err := kube.New(kube.Config{
		Kubeconfig: cfg.Kubeconfig, Servers: cfg.Servers(), ServersFile: ServersFile(cfg),
		NodeName: cfg.NodeName, Accelerations: cfg.Sockmap == "true", ServiceCIDRs: cfg.ServiceCIDRs == "auto", PodsOnly: cfg.AcceleratesOnly(), Version: version, Store: store, Log: log,
	})
	if err != nil {
		return nil, API{}, err
	}
	return kubeSource{src}, API{src.Events(), src.Node(), src.Policies()}, nil
}

func (s kubeSource) Fill(status *observe.SourceStatus) {
	state := s.Status()
	status.Server, status.Configured = state.Server, state.Configured
	for _, k := range state.Kinds {
		if k.Changed.After(status.LastChange) {
			status.LastChange = k.Changed
		}
		if k.Error != "" {
			status.Errors = append(status.Errors, observe.SourceError{Where: k.Kind, Message: k.Error})
		}
	}
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
