package agent

import (
	"fmt"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/agent/cluster"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
)

// status returns the state of this node: what the kernel has, and what only the agent knows.
func (a *agent) status() observe.Status {
	s, err := a.tables()
	s.Problems = a.problems()
	a.complete(&s, err)
	return s
}

// tables returns the state of the maps. Once the agent knows what is in them it does not list them,
// however large they are.
func (a *agent) tables() (s observe.Status, err error) {
	r := a.reconciler.Load()
	if r == nil {
		pinned, err := mapstats.Read(datapath.MapsDir(a.cfg.BPFFS))
		if err == nil {
			s = observe.NewStatus(pinned)
		}
		return s, err
	}
	stats := r.Stats()
	s.Services, s.Frontends, s.Backends = stats.Services, stats.Frontends, stats.Backends
	reading, err := a.measure()
	a.fillMaps(&s, &reading)
	return s, err
}

// fillMaps adds what was read from the maps.
func (a *agent) fillMaps(s *observe.Status, from *mapstats.Reading) {
	s.Maps, s.Fragments, s.Snat = from.Maps, from.Fragments, &from.Snat
	if a.reconciler.Load() != nil {
		s.Pins = &datapath.Pins{Missing: from.Unpinned}
	}
}

// complete adds the state of the programs and what only the agent knows to the state of the maps,
// and finds what degrades the node. err says what went wrong when the maps were read.
func (a *agent) complete(s *observe.Status, err error) {
	s.Version, s.Node, s.Started, s.Agent = a.version, a.cfg.NodeName, a.started, a.before.Status(time.Now())
	s.Source = cluster.Status(a.source, a.store, a.cfg.Source)
	if r := a.reconciler.Load(); r != nil {
		s.Reconcile = r.Status()
		if pods := a.optOuts.Load().status(); pods != nil {
			s.Reconcile.Verify.Found += pods.Damage
			s.Reconcile.Verify.Mended += pods.Mended
		}
	}
	s.ServiceRanges = a.store.ServiceRanges()
	s.OptOut, s.Flows = a.optOuts.Load().status(), a.flows.Load().Status()
	if routes, known := a.routes.Load().Status(); known {
		s.Routes = &routes
	}
	if s.Snat != nil {
		s.Snat.Uses = a.flows.Load().SnatUses(s.Snat.RefusedLately > 0)
	}
	s.Enforced = a.enforcer.state(a.network.Load().Devices())
	if s.Enforced != nil && s.Reconcile != nil {
		s.Reconcile.Verify.Found += s.Enforced.Damage
		s.Reconcile.Verify.Mended += s.Enforced.Mended
	}
	s.PodNetwork, s.Policies, s.Sockmap = a.network.Load().Status(), a.policies.Status(), a.accelerator.Status()
	var failed error
	s.Datapath, failed = a.path.Status()
	s.Datapath.Features["abort sockets of backends that are gone"] = a.sockets.Load().Works()
	addForwarding(s.Datapath.Outside)
	if s.Pins != nil {
		pins := s.Datapath.Pins
		pins.Missing, s.Pins = s.Pins.Missing, &pins
	}
	s.Disbelieved = a.nodes.Refused()
	s.FindProblems()
	if r := a.reconciler.Load(); s.Source.Synced && (r == nil || !r.Stats().Synced) {
		s.Degraded = append(s.Degraded, "The maps do not yet contain what the source delivered.")
	}
	for _, err := range []error{err, failed} {
		if err != nil {
			s.Degraded = append(s.Degraded, fmt.Sprintf("The state of the kernel cannot be read: %v.", err))
		}
	}
	s.Degraded = append(s.Degraded, faultsOf(a.servers)...)
}

// reportPins returns a function that posts an event about pins that had to be restored. The log has it
// already.
func reportPins(store *model.Store, events cluster.Events) func(names []string) {
	return func(names []string) {
		if events != nil {
			events.Node(store.Self().UID, true, "PinsRemoved", fmt.Sprintf("Somebody removed pins of maps of this node (%s). They are restored, and nothing "+
				"is lost. Find out who removes files below the directory fairlead of the node's BPF file system.", strings.Join(names, ", ")))
		}
	}
}
