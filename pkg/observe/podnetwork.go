package observe

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// PodNetworkStatus is how the network is doing that the agent gives the pods of its node.
type PodNetworkStatus struct {
	Mode      string                  `json:"mode"` // main or chained
	CIDRs     []string                `json:"cidrs,omitempty"`
	Pods      int                     `json:"pods"`
	Device    string                  `json:"device,omitempty"`    // what is made for pods that start: veth or netkit; empty where others make it
	Netkits   int                     `json:"netkits,omitempty"`   // pods that have one
	Unchecked int                     `json:"unchecked"`           // may send under others' addresses
	Adopted   []string                `json:"adopted,omitempty"`   // pods whose records were lost: their host ports are as their Pods have them
	Unknown   []string                `json:"unknown,omitempty"`   // likewise, of which too little is known to check what they send
	Addresses map[string]AddressCount `json:"addresses,omitempty"` // by family
	Reclaimed uint64                  `json:"reclaimed"`           // what nobody released
	Mended    uint64                  `json:"mended"`              // pods whose routes were lost
	Needed    []string                `json:"needed,omitempty"`    // settings of the kernel; DEVICE is that of each pod
	Settings  []string                `json:"settings,omitempty"`  // of the node that are not as needed
	Error     string                  `json:"error,omitempty"`     // why no pod can be added
	Routing   *RoutingStatus          `json:"routing,omitempty"`   // nil where nobody here knows the way to other nodes
	BigTCP    *BigTCPStatus           `json:"bigTCP,omitempty"`    // nil where nobody asked for it
	Bandwidth *BandwidthStatus        `json:"bandwidth,omitempty"` // likewise

	Masquerade *MasqueradeStatus `json:"masquerade,omitempty"` // nil without a file
	Proxies    []ProxyStatus     `json:"proxies,omitempty"`
	Unproxied  int               `json:"unproxied,omitempty"`  // pods that ask for a proxy that is not known, or are not known themselves
	ProxyError string            `json:"proxyError,omitempty"` // why nothing is handed to proxies
}

// ProxyStatus is a proxy to which pods of this node may have their connections handed.
type ProxyStatus struct {
	Name     string `json:"name"`
	Port     uint16 `json:"port"`
	Optional bool   `json:"optional,omitempty"` // connections go their way while nobody listens
	Pods     int    `json:"pods"`               // that have it
}

// MasqueradeStatus is what is known from the file of networks to which pods speak under their own addresses.
type MasqueradeStatus struct {
	File     string `json:"file"`
	Networks int    `json:"networks"`        // of its last good version
	Error    string `json:"error,omitempty"` // why the present one cannot be used
}

// RoutingStatus is how packets get to the pods of other nodes.
type RoutingStatus struct {
	Mode    string   `json:"mode"` // none, native or vxlan
	Nodes   int      `json:"nodes"`
	Routes  int      `json:"routes"`
	Refused []string `json:"refused,omitempty"` // networks that nodes claim and do not get, and why
	Left    []string `json:"left,omitempty"`    // networks that are left to others, and why
	Mended  uint64   `json:"mended"`            // routes and neighbours that were lost
	Error   string   `json:"error,omitempty"`
}

func (r *RoutingStatus) text() string {
	if r.Mode == "none" {
		return "; the network routes to other nodes' pods"
	}
	text := fmt.Sprintf("; %s to the pods of %d nodes, %d routes", r.Mode, r.Nodes, r.Routes)
	if len(r.Left) > 0 {
		text += fmt.Sprintf(", %d networks left alone, the first is %s", len(r.Left), r.Left[0])
	}
	if r.Mended > 0 {
		text += fmt.Sprintf(", %d lost routes and neighbors restored", r.Mended)
	}
	return text
}

func (r *RoutingStatus) judge(say func(string, ...any)) {
	if r == nil {
		return
	}
	if r.Error != "" {
		say("Pods on other nodes may be unreachable: %s.", r.Error)
	}
	if len(r.Refused) > 0 {
		say("%d networks that nodes claim for their pods get no route. The first is: %s.", len(r.Refused), r.Refused[0])
	}
}

// AddressCount is how many addresses are in which state.
type AddressCount struct {
	Used    int     `json:"used"`
	Cooling int     `json:"cooling"`
	Free    float64 `json:"free"`
}

func (p *PodNetworkStatus) text() string {
	text := fmt.Sprintf("%s, %d pods", p.Mode, p.Pods)
	if p.Netkits > 0 || p.Device == "netkit" {
		text += fmt.Sprintf(" (%d with a netkit; new ones get a %s)", p.Netkits, p.Device)
	}
	if p.Unchecked > 0 {
		text += fmt.Sprintf(", %d of them with unchecked source addresses", p.Unchecked)
	}
	for _, family := range slices.Sorted(maps.Keys(p.Addresses)) {
		count := p.Addresses[family]
		text += fmt.Sprintf("; %s: %d used, %d cooling, %.4g free", family, count.Used, count.Cooling, count.Free)
	}
	if len(p.CIDRs) > 0 {
		text += " of " + strings.Join(p.CIDRs, ", ")
	}
	if len(p.Adopted) > 0 {
		text += fmt.Sprintf("; %d pods whose records were lost; until recreated, they use the host ports in their Pods: %s",
			len(p.Adopted), firstOf(p.Adopted))
	}
	if p.Mended > 0 {
		text += fmt.Sprintf("; %d lost pod routes restored", p.Mended)
	}
	if m := p.Masquerade; m != nil {
		text += fmt.Sprintf("; %d networks in %s are not masqueraded", m.Networks, m.File)
	}
	for _, proxy := range p.Proxies {
		text += fmt.Sprintf("; proxy %s on port %d for %d pods", proxy.Name, proxy.Port, proxy.Pods)
	}
	if p.Routing != nil {
		text += p.Routing.text()
	}
	return text
}

func (p *PodNetworkStatus) judge(say func(string, ...any)) {
	if p == nil {
		return
	}
	p.Routing.judge(say)
	p.BigTCP.judge(say)
	p.Bandwidth.judge(say)
	if m := p.Masquerade; m != nil && m.Error != "" {
		say("The masquerade configuration %s cannot be used. The %d networks of the last good one apply: %s.", m.File, m.Networks, m.Error)
	}
	if len(p.Unknown) > 0 {
		say("The records of %d pods were lost, and without them nothing that these send can be checked. Delete the pods, so that they are recreated: %s.",
			len(p.Unknown), firstOf(p.Unknown))
	}
	if p.Unproxied > 0 {
		say("%d pods cannot open TCP connections: the proxy that they ask for is not in --l7-proxies, or their Pods are not known yet.", p.Unproxied)
	}
	if p.ProxyError != "" {
		say("Pods' connections do not reach their proxies: %s.", p.ProxyError)
	}
	if p.Error != "" {
		say("No pod can be added to this node: %s.", p.Error)
	}
	for _, family := range slices.Sorted(maps.Keys(p.Addresses)) {
		if count := p.Addresses[family]; count.Free < 1 && count.Cooling == 0 {
			say("No %s address is left for new pods: %d are in use in %s.", family, count.Used, strings.Join(p.CIDRs, ", "))
		}
	}
	if len(p.Settings) > 0 {
		say("Pods' packets are not forwarded: %s is not set. \"fairlead init\" sets it.", strings.Join(p.Settings, " and "))
	}
}

// mostNamed is how many of a list are named where a line has to do.
const mostNamed = 8

func firstOf(names []string) string {
	if more := len(names) - mostNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}
