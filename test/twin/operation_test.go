package twin

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
)

// operation is one thing that happens: a packet comes in or leaves, or the node's configuration or
// memory changes. Operations can be written to a file, so that a sequence that once found a bug
// survives changes of the generator.
type operation struct {
	In         *receivedFrame   `json:"in,omitempty"`
	Leaving    hexFrame         `json:"leaving,omitempty"`
	Pod        *podFrame        `json:"pod,omitempty"`
	Service    *serviceChange   `json:"service,omitempty"`
	Frontend   *frontendChange  `json:"frontend,omitempty"`
	Node       *nodeChange      `json:"node,omitempty"`
	Route      *routeChange     `json:"route,omitempty"`
	RouteEpoch *epochChange     `json:"told,omitempty"`
	Inside     *insideChange    `json:"inside,omitempty"`
	ClusterIPs *insideChange    `json:"clusterIPs,omitempty"`
	Hosted     *hostedChange    `json:"hosted,omitempty"`
	NatDevice  *natDeviceChange `json:"natDevice,omitempty"`
	Flow       *flowChange      `json:"flow,omitempty"`
	Visit      *visitChange     `json:"visit,omitempty"`
	Policies   *policyChange    `json:"policies,omitempty"`
	Asked      *askedChange     `json:"asked,omitempty"`
}

// hexFrame is a frame that is written in hexadecimal.
type hexFrame []byte

func (f hexFrame) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(f)), nil }

func (f *hexFrame) UnmarshalText(text []byte) error {
	frame, err := hex.DecodeString(string(text))
	*f = frame
	return err
}

// receivedFrame is a frame that comes in.
type receivedFrame struct {
	Frame  hexFrame `json:"frame"`
	Device int      `json:"device"`
	Silent bool     `json:"silent,omitempty"` // the limit of ICMP errors is reached

	// Out of the tunnel: the address that the packet around it came from, or none if this node has put it there.
	Sender netip.Addr `json:"sender,omitzero"`
}

// podFrame is a frame that a pod sends or gets.
type podFrame struct {
	Frame  hexFrame `json:"frame"`
	Pod    int      `json:"pod"`              // number of its device
	To     bool     `json:"to,omitempty"`     // the pod gets it
	By     int      `json:"by,omitempty"`     // then, the device that it came in by; 0: a process of the node sent it
	Past   bool     `json:"past,omitempty"`   // packets of pods bypass the stack
	Silent bool     `json:"silent,omitempty"` // the limit of ICMP errors is reached
}

// frame returns the frame of an operation that is a packet.
func (o operation) frame() []byte {
	switch {
	case o.In != nil:
		return o.In.Frame
	case o.Pod != nil:
		return o.Pod.Frame
	}
	return o.Leaving
}

// isSilent reports whether no ICMP error may be sent about it.
func (o operation) isSilent() bool { return o.In != nil && o.In.Silent || o.Pod != nil && o.Pod.Silent }

// serviceChange replaces the content of a service. Its backends have the numbers from index*16 on.
type serviceChange struct {
	Index    int            `json:"index"`
	Service  Service        `json:"service"`
	Backends []Backend      `json:"backends"`
	Ranges   []netip.Prefix `json:"ranges,omitempty"`
}

// insideChange sets the prefixes inside the cluster.
type insideChange struct {
	Prefixes []netip.Prefix `json:"prefixes"`
}

// backendsEach is how many backend numbers each service has.
const backendsEach = 16

// frontendChange adds or removes a frontend, or closes it as draining a node does.
type frontendChange struct {
	Key      Key      `json:"key"`
	Frontend Frontend `json:"frontend"`
	Gone     bool     `json:"gone,omitempty"`
	Closed   bool     `json:"closed,omitempty"`
}

// nodeChange changes the node's addresses.
type nodeChange struct {
	Own        netip.Addr `json:"own,omitzero"` // with NodePorts or without
	Ports      bool       `json:"ports,omitempty"`
	Gone       bool       `json:"gone,omitempty"`
	Masquerade netip.Addr `json:"masquerade,omitzero"`
	Ping       netip.Addr `json:"ping,omitzero"`
}

// routeChange changes the way to an address.
type routeChange struct {
	Addr   netip.Addr `json:"addr"`
	Device int        `json:"device"`
	Known  bool       `json:"known"`
}

// epochChange sets what the node is told about changes of ways, in ticks from now.
type epochChange struct {
	Changed     int32 `json:"changed"`
	Followed    int32 `json:"followed"`
	RangeEpochs int32 `json:"rangeEpochs,omitempty"` // when source ranges of load balancers changed
}

// hostedChange adds or removes a backend on this node to which other nodes forward.
type hostedChange struct {
	At      netip.AddrPort `json:"at"`
	Service int            `json:"service,omitempty"` // 0: every service has it
	Gone    bool           `json:"gone,omitempty"`
}

// natDeviceChange sets whether answers get their source rewritten at a device.
type natDeviceChange struct {
	Device int  `json:"device"`
	Gone   bool `json:"gone,omitempty"`
}

// flowChange changes the row of a flow without a packet.
type flowChange struct {
	Flow Flow   `json:"flow"`
	What string `json:"what"` // evict, age, tear, or outlive the time to be given back
}

// visitChange ages the record of a client.
type visitChange struct {
	Client  netip.Addr `json:"client"`
	Service int        `json:"service"`
	Lapse   bool       `json:"lapse,omitempty"`
}

// encode writes operations as text, one per line.
func encode(list []operation) ([]byte, error) {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	for _, o := range list {
		if err := encoder.Encode(o); err != nil {
			return nil, err
		}
	}
	return []byte(b.String()), nil
}

func decode(text []byte) ([]operation, error) {
	var list []operation
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var o operation
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		list = append(list, o)
	}
	return list, nil
}

func (o operation) String() string {
	switch {
	case o.In != nil:
		return fmt.Sprintf("device %d brings (from %s) %s", o.In.Device, o.In.Sender, describe(o.In.Frame))
	case o.Leaving != nil:
		return "leaving: " + describe(o.Leaving)
	case o.Pod != nil && o.Pod.To:
		return fmt.Sprintf("to pod %d: %s", o.Pod.Pod, describe(o.Pod.Frame))
	case o.Pod != nil:
		return fmt.Sprintf("pod %d sends (past the stack: %v) %s", o.Pod.Pod, o.Pod.Past, describe(o.Pod.Frame))
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// describe describes a frame for a reader, and appends all its bytes.
func describe(frame []byte) string {
	p := read(frame)
	kind := []string{"other", "flow", "cut", "message", "later fragment"}[p.content]
	return fmt.Sprintf("%s %s to %s proto %d flags %#x seq %d ack %d ttl %d first %v, %d bytes: %x",
		kind, p.flow.Source, p.flow.Dest, p.flow.Proto, p.flags, p.seq, p.ack, p.ttl, p.first, len(frame), frame)
}
