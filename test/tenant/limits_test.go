package tenant

import (
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
)

// The quotas are small, so that small objects exceed them.
const (
	mostFrontends = 96
	mostHosted    = 32
	mostBackends  = 96
	mostSlots     = 4096
)

func config(store *model.Store, tables *reconcile.Tables) reconcile.Config {
	return reconcile.Config{
		Store: store, Tables: tables,
		Facts: lb.Facts{
			ExternalIPs: lb.ExternalIPsAll, AcceptDirect: true, NodePorts: model.PortRange{First: 30000, Last: 32767},
			Quota: lb.Quota{Frontends: 48, Hosted: 16, Backends: 48, Slots: 2048},
		},
		NamespaceQuota: lb.Quota{Frontends: mostFrontends, Hosted: mostHosted, Backends: mostBackends, Slots: mostSlots},
	}
}
