// Package explain answers what the programs do with a connection, and why.
package explain

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/snapshot"
)

// Question asks about a new connection.
type Question struct {
	// Client is the connecting side. An address of the node, a loopback address and an invalid
	// address stand for a process on the node; any other address stands for a pod on it.
	Client      netip.Addr
	Destination netip.AddrPort
	Protocol    model.Protocol
	Self        Namespace // the network namespace of the caller
}

// Outcome is what happens to a connection.
type Outcome string

// The outcomes.
const (
	ToBackend Outcome = "backend"    // it is pointed at a backend
	Refused   Outcome = "refused"    // connect fails
	LeftAlone Outcome = "left-alone" // it goes to the dialed address
)

// Explanation is what the programs do with a Question's connection, and why.
type Explanation struct {
	Client      string             `json:"client"`
	Destination netip.AddrPort     `json:"destination"`
	Protocol    string             `json:"protocol"`
	Outcome     Outcome            `json:"outcome"`
	Reason      string             `json:"reason"`
	Frontend    *snapshot.Frontend `json:"frontend,omitempty"` // that matched
	Matched     string             `json:"matched,omitempty"`  // what it matched by
	Service     string             `json:"service,omitempty"`  // that owns the frontend
	Scope       string             `json:"scope,omitempty"`
	Policy      string             `json:"policy,omitempty"` // why that scope
	Affinity    string             `json:"affinity,omitempty"`
	Algorithm   string             `json:"algorithm,omitempty"`
	Decides     string             `json:"decides,omitempty"` // what the algorithm decides by
	// Forwarding is how packets get to the backend, and Mode says why, in words.
	Forwarding Forwarding  `json:"forwarding,omitempty"`
	Mode       string      `json:"mode,omitempty"`
	Choice     *Choice     `json:"choice,omitempty"` // for a client outside
	Candidates []Candidate `json:"candidates,omitempty"`
	// Next is the backend of the next connection, if it is known.
	Next *netip.AddrPort `json:"next,omitempty"`
	// Trial is what the programs did with the packet of a client outside, and SourceRange what the
	// ranges mean for it.
	Trial       *Trial `json:"trial,omitempty"`
	SourceRange string `json:"sourceRange,omitempty"`
	// Verdict is what network policies say about where the connection goes, in words.
	Verdict string `json:"policyVerdict,omitempty"`
	// Cause and Cure are set for a drop.
	Cause string `json:"cause,omitempty"`
	Cure  string `json:"cure,omitempty"`

	Nearest []Near   `json:"nearest,omitempty"` // if the destination is no service
	Probes  []Probed `json:"probes,omitempty"`
	Notes   []string `json:"notes,omitempty"`
	// Damage says why the answer may be wrong: the maps or the programs are damaged.
	Damage []string `json:"damage,omitempty"`

	OfPod bool `json:"-"` // the client is assumed to be a pod of this node

	protocol model.Protocol
	here     bool // the client is in the caller's network namespace
}

// Candidate is a backend that a connection may get.
type Candidate struct {
	Address netip.AddrPort `json:"address"`
	Slots   int            `json:"slots"`
	Percent float64        `json:"percent"` // of the slots
}

// facts are the inputs of the programs besides the tables.
type facts struct {
	node    map[netip.Addr]struct{} // addresses of the node
	primary []netip.Addr            // those that backends on other nodes see, of either family
	// remembered returns the affinity entry that the client of a namespace has for a service, or
	// nil.
	remembered func(cookie uint64, service *snapshot.Service) (*bpf.MapsAffinity, error)
	// rememberedAddr does the same for a client outside, which is identified by its address.
	rememberedAddr func(client netip.Addr, service *snapshot.Service) (lastFlow, error)
	now            uint64              // on the clock of affinity
	pods           []snapshot.LocalPod // pods with programs at their devices
	optouts        []snapshot.Optout
}

// Inside answers a Question from the maps pinned in dir, as the programs that read them would. The
// error wraps what maps.Open returns.
func Inside(dir string, q Question) (*Explanation, error) {
	var e *Explanation
	err := explainWith(dir, func(s *snapshot.Snapshot, known facts) (err error) {
		e, err = explain(s, known, q)
		return err
	})
	return e, err
}

// explainWith keeps the maps pinned in dir open while use runs.
func explainWith(dir string, use func(*snapshot.Snapshot, facts) error) (err error) {
	m, err := maps.Open(dir, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	s, err := snapshot.Read(m)
	if err != nil {
		return err
	}
	known := facts{
		pods: s.Pods, optouts: s.Optouts,
		node: map[netip.Addr]struct{}{},
		remembered: func(cookie uint64, service *snapshot.Service) (*bpf.MapsAffinity, error) {
			return rememberedBy(m.Affinity, cookieAddr(cookie), service)
		},
		rememberedAddr: func(client netip.Addr, service *snapshot.Service) (lastFlow, error) {
			entry, err := rememberedBy(m.Affinity, maps.AddrOf(client), service)
			if entry == nil {
				return lastFlow{}, err
			}
			return lastFlow{true, entry.Last, entry.Row}, err
		},
	}
	list, err := maps.NodeAddrList(m.NodeAddrs)
	if err != nil {
		return err
	}
	for _, addr := range list {
		known.node[addr] = struct{}{}
	}
	if known.primary, err = maps.SnatAddrs(m.SnatAddrs); err != nil {
		return err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		return fmt.Errorf("read the clock of affinity: %w", err)
	}
	known.now = uint64(now.Nano())
	return use(s, known)
}

// lastFlow says when a client last began a flow to a service, and to which backend row. If there is
// false, it is not known.
type lastFlow struct {
	there bool
	last  uint64
	row   uint32
}

// cookieAddr returns the form in which the socket programs store a client.
func cookieAddr(cookie uint64) maps.Addr {
	return maps.Addr{Word: [4]uint32{uint32(cookie), uint32(cookie >> 32)}}
}

// rememberedBy returns the entry of a client for a service, or nil if there is none that the programs
// would use.
func rememberedBy(m *ebpf.Map, client maps.Addr, service *snapshot.Service) (*bpf.MapsAffinity, error) {
	key := bpf.MapsAffinityKey{Client: client, Service: service.Index}
	var entry bpf.MapsAffinity
	err := m.Lookup(&key, &entry)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up the client's affinity: %w", err)
	}
	if entry.Epoch != service.AffinityEpoch {
		return nil, nil
	}
	return &entry, nil
}

// explain follows the steps of the socket programs, in order.
func explain(s *snapshot.Snapshot, known facts, q Question) (*Explanation, error) {
	q.Destination = netip.AddrPortFrom(q.Destination.Addr().Unmap().WithZone(""), q.Destination.Port())
	q.Client = q.Client.Unmap().WithZone("")
	x := explainer{facts: known, Question: q, snapshot: s, e: &Explanation{
		Destination: q.Destination, Protocol: q.Protocol.String(), protocol: q.Protocol,
	}}
	x.cookie = x.cookieOfClient()
	x.e.here = x.cookie != 0
	x.e.Client, x.e.OfPod = x.client(), !x.inNode()
	x.noteProxy()
	service, frontend := x.frontend()
	if frontend == nil {
		x.e.Outcome = LeftAlone
		x.refuseNowhere()
		x.e.Nearest = nearest(s, q)
		return x.e, nil
	}
	x.e.Frontend = frontend
	x.device = x.ofClient()
	why := x.pastSockets(service, frontend)
	if service != nil {
		x.e.Service = service.Label()
	}
	switch {
	case why != "" && x.device == nil:
		x.e.Outcome, x.e.Reason = LeftAlone, why+"; its packets are checked and balanced "+x.elsewhere()
	case service == nil:
		x.damaged("the frontend leads to service %d, which does not exist", frontend.Service)
		x.e.Outcome, x.e.Reason = Refused, "the frontend leads to a service without a table"
	case why != "":
		return x.e, x.atDevice(service, frontend, why)
	default:
		x.noteDevice()
		return x.e, x.choose(service, frontend)
	}
	return x.e, nil
}

// explainer fills in one Explanation.
type explainer struct {
	facts
	Question
	snapshot *snapshot.Snapshot
	e        *Explanation
	device   *snapshot.LocalPod // the pod that is the client, if its device is known
	cookie   uint64             // of the client's network namespace; 0 if unknown
	visit    lastFlow           // of a client outside
	port     uint16             // likewise
}

func (x *explainer) damaged(format string, args ...any) {
	x.e.Damage = append(x.e.Damage, fmt.Sprintf(format, args...))
}

// inNode reports whether the client is in the network namespace of the node.
func (x *explainer) inNode() bool {
	addr := x.Client
	return !addr.IsValid() || addr.IsLoopback() || addr.IsUnspecified() || x.ofNode(addr)
}

func (x *explainer) ofNode(addr netip.Addr) bool {
	_, ok := x.node[addr]
	return ok
}

// cookieOfClient returns the cookie of the client's namespace if it is the caller's, and 0
// otherwise.
func (x *explainer) cookieOfClient() uint64 {
	same := slices.Contains(x.Self.Addrs, x.Client)
	if x.inNode() {
		same = slices.ContainsFunc(x.Self.Addrs, x.ofNode)
	}
	if !same {
		return 0
	}
	return x.Self.Cookie
}

func (x *explainer) client() string {
	switch {
	case !x.Client.IsValid():
		return "a process of the node"
	case x.inNode():
		return fmt.Sprintf("a process of the node (%s)", x.Client)
	}
	return fmt.Sprintf("a pod of this node (%s)", x.Client)
}

// frontend returns the row that the destination matches, and its service. It tries the row of the
// address itself first, then, if the address is the node's, the row for every address of the node.
// If there is no row, it records why the connection is left alone.
func (x *explainer) frontend() (*snapshot.Service, *snapshot.Frontend) {
	addr := x.Destination.Addr()
	service, row := x.row(maps.KeyOf(addr, x.Destination.Port(), x.Protocol))
	if row != nil && row.Row.Kind == maps.ExternalOnly {
		x.e.Reason = fmt.Sprintf("%s is an external IP of %s, and --external-ips=external-only does not serve it to clients in the cluster",
			addr, ownerOf(service))
		return nil, nil
	}
	if row != nil && row.Row.Kind < maps.NodePort {
		x.e.Matched = "the row of this address"
		return service, row
	}
	at, why := x.atNode(addr)
	if !at {
		x.e.Reason = cmp.Or(why, x.noService(row))
		return nil, nil
	}
	if row != nil {
		x.e.Matched = "the row of this address, and " + why
		return service, row
	}
	any := model.FamilyOf(addr).Unspecified()
	if service, row = x.row(maps.KeyOf(any, x.Destination.Port(), x.Protocol)); row == nil {
		x.e.Reason = fmt.Sprintf("no service has %s/%s, and the node has no port %d/%s",
			x.Destination, x.Protocol, x.Destination.Port(), x.Protocol)
		return nil, nil
	}
	x.e.Matched = "the row for every address of the node: " + why
	return service, row
}

// refuseNowhere refuses what is for an address of Services but for no port of one. UDP sockets are
// connected all the same, and their datagrams answered.
func (x *explainer) refuseNowhere() {
	addr := x.Destination.Addr()
	_, row := x.row(maps.KeyOf(addr, x.Destination.Port(), x.Protocol))
	i := slices.IndexFunc(x.snapshot.ClusterIPs, func(p netip.Prefix) bool { return p.Contains(addr) })
	if i < 0 || row != nil || x.ofNode(addr) || x.optedOut() != nil {
		return
	}
	x.e.Outcome = Refused
	x.e.Reason = fmt.Sprintf("no service has %s/%s, and %s is for ClusterIPs", x.Destination, x.Protocol, x.snapshot.ClusterIPs[i])
}

// row finds the frontend of a key.
func (x *explainer) row(key maps.SvcKey) (*snapshot.Service, *snapshot.Frontend) {
	for i := range x.snapshot.Services {
		service := &x.snapshot.Services[i]
		for j := range service.Frontends {
			if service.Frontends[j].Key == key {
				return service, &service.Frontends[j]
			}
		}
	}
	for i := range x.snapshot.Dangling {
		if x.snapshot.Dangling[i].Key == key {
			return nil, &x.snapshot.Dangling[i]
		}
	}
	return nil, nil
}

// atNode reports whether ports of the node answer at an address, and why. If not, it says why
// unless that is obvious.
func (x *explainer) atNode(addr netip.Addr) (bool, string) {
	local := addr.IsLoopback() || addr.IsUnspecified()
	switch {
	case local && x.inNode():
		return true, fmt.Sprintf("for a process of the node, %s is the node itself", addr)
	case local:
		return false, fmt.Sprintf("for a pod, %s is the pod itself; it reaches ports of the node at the node's addresses", addr)
	case x.ofNode(addr):
		return true, fmt.Sprintf("%s is an address of this node", addr)
	}
	return false, ""
}

// noService says why an address is left alone that belongs to neither a service nor the node. If it
// has a row nevertheless, that is a host port's.
func (x *explainer) noService(row *snapshot.Frontend) string {
	if row != nil {
		return fmt.Sprintf("%s is the host IP of a %s, but not an address of this node", x.Destination.Addr(), row.Kind)
	}
	service, node := x.row(maps.KeyOf(model.FamilyOf(x.Destination.Addr()).Unspecified(), x.Destination.Port(), x.Protocol))
	if node != nil && node.Row.Kind == maps.NodePort {
		return fmt.Sprintf("%s is neither a service's address nor this node's; port %d is the node port of %s: if %s is another node, "+
			"that node answers it", x.Destination.Addr(), x.Destination.Port(), ownerOf(service), x.Destination.Addr())
	}
	return fmt.Sprintf("no service has %s/%s, and %s is not an address of this node", x.Destination, x.Protocol, x.Destination.Addr())
}

func ownerOf(service *snapshot.Service) string {
	if service == nil {
		return "a service that does not exist"
	}
	return service.Label()
}
