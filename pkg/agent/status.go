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
		s.Pins = &observe.PinStatus{Missing: from.Unpinned}
	}
}

// complete adds the state of the programs and what only the agent knows to the state of the maps,
// and finds what degrades the node. err says what went wrong when the maps were read.
func (a *agent) complete(s *observe.Status, err error) {
	s.Version, s.Node, s.Started, s.Agent = a.version, a.cfg.NodeName, a.started, a.before.Status(time.Now())
	missing := a.store.Unsynced()
	s.Source = &observe.SourceStatus{Kind: a.cfg.Source, Synced: len(missing) == 0, Missing: missing}
	a.source.Fill(s.Source)
	if r := a.reconciler.Load(); r != nil {
		stats := r.Stats()
		s.Reconcile = &observe.ReconcileState{
			Dirty: stats.Pending, Passes: stats.Passes, Errors: stats.Errors, LastError: stats.LastError,
			LastDuration: stats.LastDuration, LastTime: stats.LastPass,
			Verify: observe.VerifyState{
				Checks: stats.Checks, Found: stats.Damage, Mended: stats.Repaired, LastTime: stats.LastCheck,
			},
		}
		for _, use := range stats.Quotas {
			if use.Wanted > 0 && use.Limit > 0 {
				s.Reconcile.Quotas = append(s.Reconcile.Quotas, observe.QuotaUse(use))
			}
		}
		optOuts := a.optOuts.Load().stats()
		s.Reconcile.Verify.Found += optOuts.Damage
		s.Reconcile.Verify.Mended += optOuts.Mended
	}
	s.ServiceRanges = serviceRanges(a.store)
	s.OptOut, s.Flows = a.optOuts.Load().status(), a.flows.Load().Status()
	if ways, known := a.routes.Load().Status(); known {
		s.Ways = &ways
	}
	if s.Snat != nil {
		s.Snat.Uses = a.flows.Load().SnatUses(s.Snat.RefusedLately > 0)
	}
	s.PodNetwork, s.Policies, s.Sockmap = a.network.Load().Status(), a.policies.Status(), a.accelerator.Status()
	attached, failed := a.path.Status()
	fillPins(s.Pins, &attached.Pins)
	s.Disbelieved = a.nodes.Refused()
	s.Datapath.CgroupRoot = attached.CgroupRoot
	s.Datapath.Features = map[string]bool{
		"refuse with ECONNREFUSED": attached.Features.CanRefuse, "abort sockets of backends that are gone": a.sockets.Load().Works(),
	}
	for _, p := range attached.Programs {
		s.Datapath.Programs = append(s.Datapath.Programs, observe.ProgramStatus{
			Name: p.Name, Idle: p.Idle, Attached: p.Attached, ID: uint32(p.ID), Tag: p.Tag, Instructions: p.Instructions,
		})
	}
	s.Datapath.Attachment = attachmentStatus(&attached.Attachment)
	s.Datapath.Outside = outsideStatus(&attached.Outside)
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

// attachmentStatus returns the result of the last check, or nil before the first.
func attachmentStatus(from *datapath.Attachment) *observe.AttachmentStatus {
	if from.Checked.IsZero() {
		return nil
	}
	s := &observe.AttachmentStatus{Checked: from.Checked, Mended: from.Mended, Families: []observe.FamilyProof{}}
	if from.Err != nil {
		s.Error = from.Err.Error()
	}
	for _, p := range from.Proofs {
		s.Families = append(s.Families, observe.FamilyProof{Family: p.Family, State: observe.ProofState(p.State), Why: p.Why})
	}
	return s
}

// serviceRanges returns the ranges from which Services get their ClusterIPs.
func serviceRanges(store *model.Store) *observe.ServiceRanges {
	objects, refuses := store.ServiceCIDRs()
	ranges := &observe.ServiceRanges{Refuses: refuses}
	for _, object := range objects {
		ranges.Ranges = append(ranges.Ranges, object.CIDRs...)
	}
	return ranges
}

// fillPins adds what the agent has done about pins that others removed. There is nothing to fill before
// there are maps.
func fillPins(s *observe.PinStatus, from *datapath.Pins) {
	if s == nil {
		return
	}
	s.Restored, s.Last, s.LastTime = from.Restored, from.Last, from.At
	if from.Err != nil {
		s.Error = from.Err.Error()
	}
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
