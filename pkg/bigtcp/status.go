package bigtcp

import (
	"fmt"
	"strings"
)

// Status is how large TCP packets may be inside the node.
type Status struct {
	V4      int      `json:"ipv4"` // bytes; 0 for the usual size
	V6      int      `json:"ipv6"`
	Why4    string   `json:"why4,omitempty"` // why packets have the usual size
	Why6    string   `json:"why6,omitempty"`
	Devices []string `json:"devices,omitempty"` // that lead out of the node, including their lower devices
	Error   string   `json:"error,omitempty"`
}

// Sizes returns the sizes in the form of this package's functions.
func (b Status) Sizes() Sizes { return Sizes{b.V4, b.V6} }

// Text returns the line shown in the status of the node.
func (b *Status) Text() string {
	family := func(name string, size int, why string) string {
		if size == 0 {
			return fmt.Sprintf("%s as usual: %s", name, why)
		}
		return fmt.Sprintf("%s up to %d bytes", name, size)
	}
	text := family("IPv4", b.V4, b.Why4) + "; " + family("IPv6", b.V6, b.Why6)
	if b.V4+b.V6 > 0 {
		text += "; at " + strings.Join(append(b.Devices, "pods that start"), ", ")
	}
	return text
}

// Findings says what keeps the node from doing its job.
func (b *Status) Findings(say func(string, ...any)) {
	if b != nil && b.Error != "" {
		say("Devices do not accept TCP packets as large as they should: %s.", b.Error)
	}
}
