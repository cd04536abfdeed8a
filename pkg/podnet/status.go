package podnet

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Status is the state of the network that the agent gives the pods of its node.
type Status struct {
	Mode  string   `json:"mode"` // main or chained
	CIDRs []string `json:"cidrs,omitempty"`
	Pods  int      `json:"pods"`
	// Device is what new pods get: veth or netkit; empty if another plugin makes it.
	Device    string `json:"device,omitempty"`
	Netkits   int    `json:"netkits,omitempty"` // pods that have a netkit
	Unchecked int    `json:"unchecked"`         // pods that may send from foreign addresses
	// Adopted lists pods whose records were lost: their host ports are those of their Pods.
	Adopted []string `json:"adopted,omitempty"`
	// Unknown lists pods whose records were lost, and of which too little is known to check what
	// they send.
	Unknown   []string                `json:"unknown,omitempty"`
	Addresses map[string]AddressCount `json:"addresses,omitempty"` // by family
	Reclaimed uint64                  `json:"reclaimed"`           // unreleased attachments that were taken back
	Mended    uint64                  `json:"mended"`              // pods whose lost routes were restored
	Needed    []string                `json:"needed,omitempty"`    // kernel settings; DEVICE stands for that of each pod
	Settings  []string                `json:"settings,omitempty"`  // kernel settings that are not as needed
	Error     string                  `json:"error,omitempty"`     // why no pod can be added
	Proxies   []ProxyStatus           `json:"proxies,omitempty"`
	// Unproxied counts pods that ask for an unknown proxy, or whose Pods are not known.
	Unproxied  int    `json:"unproxied,omitempty"`
	ProxyError string `json:"proxyError,omitempty"` // why nothing is handed to proxies
}

// Status returns these counts as a status of the node. Who knows the options fills in what depends on them.
func (s *Stats) Status() Status {
	status := Status{
		Pods: s.Pods, Netkits: s.Netkits, Unchecked: s.Unchecked, Reclaimed: s.Reclaimed, Mended: s.Mended, Error: s.Error,
		Adopted: s.Adopted, Unknown: s.Unknown, Addresses: s.Families,
	}
	for _, prefix := range s.CIDRs {
		status.CIDRs = append(status.CIDRs, prefix.String())
	}
	return status
}

// ProxyStatus is a proxy that pods of this node may have their connections handed to.
type ProxyStatus struct {
	Name     string `json:"name"`
	Port     uint16 `json:"port"`
	Optional bool   `json:"optional,omitempty"` // while nothing listens, connections bypass the proxy
	Pods     int    `json:"pods"`               // pods that use it
}

// freeText returns a number of addresses, as a power of two if it is one of IPv6.
func freeText(n float64) string {
	const most = 1 << 32
	if n < most {
		return strconv.FormatFloat(n, 'f', 0, 64)
	}
	return fmt.Sprintf("2^%.0f", math.Log2(n))
}

// Text returns the line shown in the status of the node.
func (p *Status) Text() string {
	text := fmt.Sprintf("%s, %d pods", p.Mode, p.Pods)
	if p.Netkits > 0 || p.Device == "netkit" {
		text += fmt.Sprintf(" (%d with a netkit; new ones get a %s)", p.Netkits, p.Device)
	}
	if p.Unchecked > 0 {
		text += fmt.Sprintf(", %d of them with unchecked source addresses", p.Unchecked)
	}
	for _, family := range slices.Sorted(maps.Keys(p.Addresses)) {
		count := p.Addresses[family]
		text += fmt.Sprintf("; %s: %d used, %d cooling, %s free", family, count.Used, count.Cooling, freeText(count.Free))
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
	for _, proxy := range p.Proxies {
		text += fmt.Sprintf("; proxy %s on port %d for %d pods", proxy.Name, proxy.Port, proxy.Pods)
	}
	return text
}

// Findings says what keeps the node from doing its job.
func (p *Status) Findings(say func(string, ...any)) {
	if p == nil {
		return
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

// mostNamed is how many names of a list are shown in a line.
const mostNamed = 8

func firstOf(names []string) string {
	if more := len(names) - mostNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}
