package podnet

import (
	"fmt"
	"net/netip"
	"time"

	"fairlead.io/fairlead/pkg/cni"
)

// Lease is an address and whom it belongs to. Its record is a file that has the address as its name, so that no address
// can belong to two.
type Lease struct {
	Address netip.Addr     `json:"address"`
	Owner   cni.Attachment `json:"owner,omitzero"`
	Pod     cni.Pod        `json:"pod,omitzero"`
	Device  string         `json:"device"` // the node's end, which tells whether the owner is alive
	Boot    string         `json:"boot"`
	Since   time.Time      `json:"since"`
	// At is when it was given out, and Released when it came back, by the uptime.
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
	Cooling = "cooling" // its pod is gone, and it is not given to the next so soon
)

// validate returns what is wrong with a record that was read. A device is taken away because of it, so its name counts.
func (l *Lease) validate(name string) error {
	if l.Address.String() != name || l.Address.Is4In6() || l.Address.Zone() != "" {
		return fmt.Errorf("record %s is about the address %s", name, l.Address)
	}
	if !cni.IsDevice(l.Device) {
		return fmt.Errorf("record %s names %.64q, which is no device of a pod", name, l.Device)
	}
	if l.Owner != (cni.Attachment{}) {
		if err := l.Owner.Validate(); err != nil {
			return fmt.Errorf("record %s: %w", name, err)
		}
		if l.Owner.Device() != l.Device {
			return fmt.Errorf("record %s names the device of another", name)
		}
	}
	return l.Pod.Validate()
}
