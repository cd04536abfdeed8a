package agent

import (
	"fairlead.io/fairlead/pkg/health"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/model"
)

// checkedPath stands for the health check ports of Services in the count of answers, where other
// servers have paths.
const checkedPath = "healthCheckNodePort"

// serviceChecks returns the function that gives the reconciler's health checks to the servers of Services'
// health check ports. If a port cannot be opened on this node, it reports that to the Service's author, with
// kube-proxy's reason.
func (a *agent) serviceChecks() func(model.Key, string, []lb.HealthCheck) {
	services := health.NewServices(health.ServicesConfig{
		Healthy: a.readiness.proxy().Serves, Count: func(code int) { a.metrics.Answered(checkedPath, code) },
		Evicted: a.metrics.Evicted, Start: a.running.Spawn, Log: a.log,
	})
	return func(key model.Key, uid string, checks []lb.HealthCheck) {
		var list []health.ServiceCheck
		for _, c := range checks {
			network := "tcp4"
			if c.Family == model.IPv6 {
				network = "tcp6"
			}
			list = append(list, health.ServiceCheck{Network: network, Port: c.Port, Endpoints: c.Endpoints})
		}
		services.Set(key.Namespace, key.Name.Name, list, func(fault string) {
			a.report(key, uid, model.Problem{Reason: "FailedToStartServiceHealthcheck", Message: "node " + a.cfg.NodeName + ": " + fault})
		})
	}
}
