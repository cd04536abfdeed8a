package podnet

import (
	"fmt"
	"net/netip"
	"time"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/maps"
)

// Record is a registered interface of a pod: what the plugin says, and says only once.
type Record struct {
	Owner     cni.Attachment `json:"owner"`
	Pod       cni.Pod        `json:"pod,omitzero"`
	Addresses []netip.Addr   `json:"addresses"`
	Device    cni.Device     `json:"device"`
	Cookie    uint64         `json:"netnsCookie,omitempty"` // of the pod's network namespace
	// Adopted is set if the record was lost and rebuilt from what the node itself knows, which
	// includes neither the owner nor host ports.
	Adopted bool      `json:"adopted,omitempty"`
	Boot    string    `json:"boot"`
	Since   time.Time `json:"since"`
	Traits            // as last decided
}

// Traits are how a pod's treatment differs from the default.
type Traits struct {
	Unchecked bool       `json:"unchecked,omitempty"` // it may send from addresses of others
	Proxy     maps.Proxy `json:"proxy,omitzero"`      // the proxy that gets its connections
	BBR       bool       `json:"bbr,omitempty"`       // its connections use the BBR congestion control
	Policy    bool       `json:"policy,omitempty"`    // a policy is about it, or that is not known yet
	maps.Rates
}

// validate checks a record that was read.
func (r *Record) validate(name string) error {
	owner := r.Owner
	if r.Adopted && owner == (cni.Attachment{}) && cni.IsDevice(name) {
		owner = cni.Attachment{Network: "n", Container: "c", IfName: "i"} // any valid one
	} else if owner.Device() != name {
		return fmt.Errorf("record %s belongs to another device", name)
	}
	if !r.Device.Chained && r.Device.Name != name {
		return fmt.Errorf("record %s names device %.64q", name, r.Device.Name)
	}
	request := cni.Request{Verb: cni.Register, Attachment: owner, Pod: r.Pod, Addresses: r.Addresses, Device: &r.Device}
	return request.Validate()
}
