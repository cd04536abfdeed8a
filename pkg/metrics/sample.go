package metrics

import (
	"time"

	"fairlead.io/fairlead/pkg/conntrack"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/monitor"
	"fairlead.io/fairlead/pkg/optout"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/routes"
	"fairlead.io/fairlead/pkg/sockets"
	"fairlead.io/fairlead/pkg/sockmap"
)

// Sample is what one scrape reads.
type Sample struct {
	Degraded bool
	Kernel   Kernel
	Stats    reconcile.Stats
	Waiting  time.Time      // since when the oldest change has been waiting; zero if none
	Reasons  map[string]int // problems of objects, by reason
	Source   Source
	Policies *int // NetworkPolicies in the cluster; nil if unknown
	// Enforced is nil with --policies=off.
	Enforced *policies.Status
	// Denials are those of the rules in force, each in one direction.
	Denials []Denial
	OptOut  optout.Status
	Sockets sockets.Stats
	// Conntrack is zero before the first pass over the flows.
	Conntrack conntrack.Stats
	// Routes is zero before the agent follows route changes.
	Routes  routes.Status
	Monitor monitor.Stats
	// Pods is nil with --pod-network=off.
	Pods *podnet.Stats
	// Fabric is nil unless --pod-network=main.
	Fabric *fabric.Status
	Rates  []Rate // each RateOf occurs once
	// Bandwidth is nil unless --bandwidth=true.
	Bandwidth *queues.Status
	// Sockmap is nil if socket acceleration is off.
	Sockmap *sockmap.Status
}

// Kernel is what was read from the kernel. What cannot be read is missing here and makes the node
// degraded.
type Kernel struct {
	mapstats.Reading
	Programs []datapath.ProgramStatus
	// Pins is nil before there are maps.
	Pins *datapath.Pins
	// Attachment is nil before the first check of it.
	Attachment *datapath.Attachment
	// Outside is nil if there are no devices to serve.
	Outside *datapath.Outside
}

// attachment returns a number from the last check of the attachment, or 0 before the first.
func (s *Sample) attachment(value func(*datapath.Attachment) float64) float64 {
	if s.Kernel.Attachment == nil {
		return 0
	}
	return value(s.Kernel.Attachment)
}

// Source is the state of the source that delivers the objects.
type Source struct {
	Kinds         []Kind
	Errors        int // files or kinds of objects that cannot be read now
	LastChange    time.Time
	EventsDropped uint64
}

// Kind is the state of one kind of object. Lists and Failures are 0 for a source that is not a
// server.
type Kind struct {
	Name     string
	Synced   bool
	Lists    uint64 // complete ones
	Failures uint64 // failed requests
}
