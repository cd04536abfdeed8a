package podnet

import (
	"fmt"
	"net/netip"
	"time"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/maps"
)

// Record is an interface of a pod that was registered: what the plugin told, which it does only once.
type Record struct {
	Owner     cni.Attachment `json:"owner"`
	Pod       cni.Pod        `json:"pod,omitzero"`
	Addresses []netip.Addr   `json:"addresses"`
	Device    cni.Device     `json:"device"`
	Cookie    uint64         `json:"netnsCookie,omitempty"` // of the pod's network namespace
	// Adopted says that the record was lost, and this one is what the node itself tells: neither the owner nor host ports.
	Adopted bool      `json:"adopted,omitempty"`
	Boot    string    `json:"boot"`
	Since   time.Time `json:"since"`
	Traits            // as of what was known last
}

// Traits are how a pod is treated otherwise than most.
type Traits struct {
	Unchecked bool       `json:"unchecked,omitempty"` // it may send under others' addresses
	Proxy     maps.Proxy `json:"proxy,omitzero"`      // to whom its connections are handed
	BBR       bool       `json:"bbr,omitempty"`       // they have that congestion control
	maps.Rates
}

// validate returns what is wrong with a record that was read.
func (r *Record) validate(name string) error {
	owner := r.Owner
	if r.Adopted && owner == (cni.Attachment{}) && cni.IsDevice(name) {
		owner = cni.Attachment{Network: "n", Container: "c", IfName: "i"} // any that is valid
	} else if owner.Device() != name {
		return fmt.Errorf("record %s is about another", name)
	}
	if !r.Device.Chained && r.Device.Name != name {
		return fmt.Errorf("record %s names device %.64q", name, r.Device.Name)
	}
	request := cni.Request{Verb: cni.Register, Attachment: owner, Pod: r.Pod, Addresses: r.Addresses, Device: &r.Device}
	return request.Validate()
}
