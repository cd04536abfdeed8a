package agent

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"

	"fairlead.io/fairlead/pkg/health"
)

// proxyMode is the answer at /proxyMode, where kube-proxy names its mode.
const proxyMode = "fairlead"

// newServers returns the servers for the addresses in the configuration.
func (a *agent) newServers() []*health.Server {
	proxy := a.readiness.proxy()
	list := []health.ServerConfig{
		{Option: "metrics-address", Address: a.cfg.MetricsAddress, Routes: map[string]http.Handler{
			"/metrics": a.metrics.Handler(), "/proxyMode": health.Text(proxyMode),
		}},
		{Option: "healthz-address", Address: a.cfg.HealthzAddress, Routes: map[string]http.Handler{
			"/healthz": proxy.Health(), "/livez": proxy.Live(),
		}},
		{Option: "ready-address", Address: a.cfg.ReadyAddress, Routes: map[string]http.Handler{
			"/readyz": health.Ready(a.readiness.checks()), "/livez": proxy.Live(),
		}},
	}
	return serversOf(list, a.metrics.Evicted, a.log)
}

// serversOf returns one server per address of the list. Options with the same address share a
// server.
func serversOf(list []health.ServerConfig, evicted func(), log *slog.Logger) []*health.Server {
	byAddress := map[string]health.ServerConfig{}
	var servers []*health.Server
	for _, cfg := range list {
		if cfg.Address == "" {
			continue
		}
		if first, taken := byAddress[cfg.Address]; taken {
			maps.Copy(first.Routes, cfg.Routes)
			continue
		}
		cfg.Evicted, cfg.Log = evicted, log
		byAddress[cfg.Address] = cfg
		servers = append(servers, health.NewServer(cfg))
	}
	return servers
}

// faultsOf returns a sentence for each server that cannot answer.
func faultsOf(servers []*health.Server) (list []string) {
	for _, server := range servers {
		if fault := server.Fault(); fault != "" {
			list = append(list, fmt.Sprintf("Connections are handled, but an address for metrics or health checks does not answer: %s.", fault))
		}
	}
	return list
}
