package metrics

import (
	"time"

	"fairlead.io/fairlead/pkg/conntrack"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/monitor"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/optout"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/routes"
	"fairlead.io/fairlead/pkg/sockets"
)

// Sample is what is read for one scrape.
type Sample struct {
	Degraded bool
	Kernel   Kernel
	Stats    reconcile.Stats
	Waiting  time.Time      // since when the oldest change waits; zero for none
	Reasons  map[string]int // of the problems of objects
	Source   Source
	Policies *int // NetworkPolicies of the cluster; nil where that is not known
	OptOut   optout.Status
	Sockets  sockets.Stats
	// Conntrack is zero before the first pass over the flows.
	Conntrack conntrack.Stats
	// Routes is zero before changes of them are followed.
	Routes  routes.Stats
	Monitor monitor.Stats
	// Pods is nil where pods get their network otherwise.
	Pods *podnet.Stats
	// Fabric is nil likewise.
	Fabric *fabric.Stats
	Rates  []Rate // no two of the same
	// Sockmap is nil where everything goes by TCP.
	Sockmap *observe.SockmapStatus
}

// Kernel is what the kernel has. What cannot be read is left out, and makes the node degraded.
type Kernel struct {
	observe.Reading
	Programs []observe.ProgramStatus
	// Attachment is nil before the first check of it.
	Attachment *observe.AttachmentStatus
	// Outside is nil where no device is to be served.
	Outside *observe.OutsideStatus
}

// attachment returns a number of the last check of the attachment, 0 before the first.
func (s *Sample) attachment(value func(*observe.AttachmentStatus) float64) float64 {
	if s.Kernel.Attachment == nil {
		return 0
	}
	return value(s.Kernel.Attachment)
}

// Source is how what delivers the objects is doing.
type Source struct {
	Kinds         []Kind
	Errors        int // files or kinds of object that cannot be read now
	LastChange    time.Time
	EventsDropped uint64
}

// Kind is how far the source is with one kind of object. Lists and Failures are 0 where there is no server to ask.
type Kind struct {
	Name     string
	Synced   bool
	Lists    uint64 // complete ones
	Failures uint64 // of requests
}
