package explain

import (
	"fmt"
	"net/netip"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/snapshot"
)

// What the programs did with the packet of a trial.
const (
	TrialInside  = "inside"  // the client is not outside, so the packet does not meet them
	TrialIdle    = "idle"    // no frontend is reached from outside, so they are not attached
	TrialStack   = "stack"   // they leave it to the stack
	TrialPassed  = "passed"  // at a pod's device: it goes on to the address that it is for
	TrialDrop    = "drop"    // they drop it, for the reason
	TrialBackend = "backend" // it goes to a backend
)

// TrialQuestion describes the first packet of a flow.
type TrialQuestion struct {
	// AtPod asks about the device of a pod, with what the pod sends or else receives, and not about that by which a
	// client outside comes in. The unspecified address then stands for a process of the node.
	AtPod       bool           `json:"atPod,omitempty"`
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	Protocol    string         `json:"protocol"`         // "tcp" or "udp"
	Device      string         `json:"device,omitempty"` // empty for the device by which the client would be answered
}

// Trial is what the programs did with the packet.
type Trial struct {
	Outcome  string         `json:"outcome"`
	Device   string         `json:"device,omitempty"` // that it comes in by
	Hook     string         `json:"hook,omitempty"`   // that decided
	Reason   string         `json:"reason,omitempty"`
	Rejected bool           `json:"rejected,omitempty"` // the client gets a TCP reset or an ICMP error
	Source   netip.AddrPort `json:"source,omitzero"`
	Backend  netip.AddrPort `json:"backend,omitzero"`
	// Forwarding is how packets get to the backend. Known says that the flow was tracked already,
	// so that no backend was chosen.
	Forwarding Forwarding `json:"forwarding,omitempty"`
	Known      bool       `json:"known,omitempty"`
	Numbers    *Numbers   `json:"numbers,omitempty"` // that lead the flow to a slot
	Way        string     `json:"way,omitempty"`     // the outgoing device; empty if the stack finds the route
	NextHop    string     `json:"nextHop,omitempty"` // its link-layer address; empty if the kernel has yet to resolve it
	// Denials are what policies denied at a pod's device. If the packet is not dropped, they are only audited.
	Denials []TrialDenial `json:"denials,omitempty"`
}

// TrialDenial is what a rule of a policy denied.
type TrialDenial struct {
	Direction string `json:"direction"`
	Rule      uint32 `json:"rule"` // its number
	By        string `json:"by"`
}

// Outcomes that only packets from outside have.
const (
	Dropped Outcome = "dropped"
	ToStack Outcome = "stack" // the node's own stack gets it unchanged
)

// Outside answers a Question about a client outside. It takes the steps from the maps pinned
// in dir, and the outcome from the trial of the programs.
func Outside(dir string, q Question, source netip.AddrPort, trial *Trial) (*Explanation, error) {
	var e *Explanation
	err := explainWith(dir, func(s *snapshot.Snapshot, known facts) (err error) {
		e, err = explainOutside(s, known, q, source, trial)
		return err
	})
	return e, err
}

func explainOutside(s *snapshot.Snapshot, known facts, q Question, source netip.AddrPort, trial *Trial) (*Explanation, error) {
	q.Client = source.Addr()
	x := explainer{facts: known, Question: q, snapshot: s, e: &Explanation{
		Client: fmt.Sprintf("a client outside (%s)", source), Destination: q.Destination, Protocol: q.Protocol.String(), protocol: q.Protocol,
		Trial: trial,
	}, port: source.Port()}
	service, frontend := x.outsideFrontend()
	x.e.Frontend = frontend
	x.outsideOutcome(trial)
	if frontend == nil {
		x.e.Nearest = nearest(s, q)
		return x.e, nil
	}
	if service == nil {
		x.damaged("the frontend leads to service %d, which does not exist", frontend.Service)
		return x.e, nil
	}
	x.e.Service = service.Label()
	x.e.SourceRange = sourceRange(service, frontend, q.Client)
	var err error
	if service.AffinitySeconds > 0 {
		if x.visit, err = x.rememberedAddr(x.Client, service); err != nil {
			return nil, err
		}
	}
	x.outsideBackends(service, frontend)
	x.outsideAffinity(service)
	x.forwarding(service)
	return x.e, nil
}

// outsideFrontend returns the row that the packet matches and its service, looked up as the
// programs do.
func (x *explainer) outsideFrontend() (*snapshot.Service, *snapshot.Frontend) {
	addr := x.Destination.Addr()
	service, row := x.row(maps.KeyOf(addr, x.Destination.Port(), x.Protocol))
	if row != nil {
		x.e.Matched = "the row of this address"
		return service, row
	}
	if !x.ofNode(addr) {
		return nil, nil
	}
	service, row = x.row(maps.KeyOf(model.FamilyOf(addr).Unspecified(), x.Destination.Port(), x.Protocol))
	if row != nil {
		x.e.Matched = fmt.Sprintf("the row for every address of the node: %s is one", addr)
	}
	return service, row
}

func (x *explainer) outsideOutcome(t *Trial) {
	switch t.Outcome {
	case TrialBackend:
		x.e.Outcome, x.e.Reason, x.e.Next = ToBackend, t.Backend.String(), &t.Backend
	case TrialDrop:
		x.drop(t.Reason)
	case TrialIdle:
		x.e.Outcome, x.e.Reason = ToStack, "no frontend is reached from outside, so no program is attached to a device"
	default:
		x.e.Outcome, x.e.Reason = ToStack, x.noFrontend()
	}
}

// noFrontend says why the programs leave a packet to the stack.
func (x *explainer) noFrontend() string {
	if x.e.Frontend != nil {
		return fmt.Sprintf("node ports are not open to clients outside at %s (--nodeport-addresses)", x.Destination.Addr())
	}
	return fmt.Sprintf("no service has %s/%s for clients outside", x.Destination, x.Protocol)
}

// sourceRange says what the ranges of a service mean for a client.
func sourceRange(service *snapshot.Service, frontend *snapshot.Frontend, client netip.Addr) string {
	if frontend.Row.Kind != maps.LoadBalancer || !service.Has(snapshot.FlagSourceRanges) {
		return ""
	}
	best := netip.Prefix{}
	for _, p := range service.SourceRanges {
		if p.Contains(client) && p.Bits() >= best.Bits() {
			best = p
		}
	}
	if best.IsValid() {
		return fmt.Sprintf("%s admits the client", best)
	}
	return "none contains the client: " + snapshot.RangesText(service)
}

// outsideBackends lists the backends to choose from, and says what decides.
func (x *explainer) outsideBackends(service *snapshot.Service, frontend *snapshot.Frontend) {
	scope := snapshot.NamedScope{Name: "all", Scope: &service.All}
	local := service.Has(snapshot.FlagExternalLocal)
	x.e.Policy = "externalTrafficPolicy is Cluster"
	switch {
	case frontend.Row.Kind == maps.ClusterIP:
		local = service.Has(snapshot.FlagInternalLocal)
		x.e.Policy = "for a ClusterIP, internalTrafficPolicy applies"
	case frontend.Row.Kind == maps.HostPort:
		x.e.Policy = "a host port leads to its pod"
	case local:
		x.e.Policy = "externalTrafficPolicy is Local: only backends on this node"
	}
	if local {
		scope = snapshot.NamedScope{Name: "local", Scope: &service.Local}
	}
	x.e.Scope, x.e.Algorithm = scope.Name, service.Algorithm.String()
	if scope.Damage != "" {
		x.damaged("service %s, scope %s: %s", service.Label(), scope.Name, scope.Damage)
	}
	for _, share := range scope.Backends {
		x.e.Candidates = append(x.e.Candidates, Candidate{
			Address: share.Address, Slots: share.Slots, Percent: 100 * float64(share.Slots) / float64(scope.Length),
		})
	}
	x.chosen(service, scope)
}

// outsideAffinity says what the client's earlier flows mean for this one.
func (x *explainer) outsideAffinity(service *snapshot.Service) {
	if service.AffinitySeconds == 0 {
		x.e.Affinity = "none"
		return
	}
	timeout := time.Duration(service.AffinitySeconds) * time.Second
	x.e.Affinity = fmt.Sprintf("ClientIP, %s since the client's last new flow; ", timeout)
	entry := x.visit
	switch age := x.age(); {
	case !entry.there:
		x.e.Affinity += "this client has no backend yet"
	case age > timeout:
		x.e.Affinity += fmt.Sprintf("this client's last one was %s ago, so a backend is chosen anew", age.Round(time.Second))
	default:
		x.e.Affinity += fmt.Sprintf("this client keeps its backend for another %s, if that is still usable", (timeout - age).Round(time.Second))
	}
}
