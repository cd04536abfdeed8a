package podnet

import (
	"fmt"
	"net/netip"
	"time"

	"fairlead.io/fairlead/pkg/cni"
)

// Lease is an address and its owner. Its record is a file named after the address, so that no
// address can have two owners.
type Lease struct {
	Address netip.Addr     `json:"address"`
	Owner   cni.Attachment `json:"owner,omitzero"`
	Pod     cni.Pod        `json:"pod,omitzero"`
	Device  string         `json:"device"` // the node's end; while it exists, the owner is alive
	Boot    string         `json:"boot"`
	Since   time.Time      `json:"since"`
	// At is the uptime at which the address was given out, and Released the one at which it came
	// back.
	At       time.Duration `json:"at"`
	Released time.Duration `json:"released,omitempty"`
}

// State returns "used" or "cooling".
func (l *Lease) State() string {
	if l.Released != 0 {
		return Cooling
	}
	return Used
}

// The states of an address.
const (
	Used    = "used"
	Cooling = "cooling" // its pod is gone, and the next pod does not get it yet
)

// validate checks a record that was read. It checks the device's name too, since the agent removes
// the device of that name.
func (l *Lease) validate(name string) error {
	if l.Address.String() != name || l.Address.Is4In6() || l.Address.Zone() != "" {
		return fmt.Errorf("record %s holds address %s", name, l.Address)
	}
	if !cni.IsDevice(l.Device) {
		return fmt.Errorf("record %s names %.64q, which is not a pod's device", name, l.Device)
	}
	if l.Owner != (cni.Attachment{}) {
		if err := l.Owner.Validate(); err != nil {
			return fmt.Errorf("record %s: %w", name, err)
		}
		if l.Owner.Device() != l.Device {
			return fmt.Errorf("record %s names the device of another owner", name)
		}
	}
	return l.Pod.Validate()
}
