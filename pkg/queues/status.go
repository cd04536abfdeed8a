package queues

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/congestion"
)

// Status is how pods are kept to their rates.
type Status struct {
	Devices    []string           `json:"devices,omitempty"` // where packets wait until they may leave
	Lacking    map[string]string  `json:"lacking,omitempty"` // device name to the reason why packets do not wait there
	Pods       int                `json:"pods"`              // pods with a rate
	Dropped    uint64             `json:"dropped"`           // packets dropped for lack of room to wait
	Congestion string             `json:"congestion"`        // the default congestion control
	BBR        *congestion.Status `json:"bbr,omitempty"`     // nil unless configured
	Error      string             `json:"error,omitempty"`
}

// congestion names the congestion control of pods' connections, and in second place BBR if only
// some pods use it.
func (b *Status) congestion() string {
	others := strings.ToUpper(b.Congestion)
	switch {
	case b.BBR == nil || b.BBR.Error != "" || others == "BBR":
		return others
	case b.BBR.Annotated:
		return fmt.Sprintf("%s, BBR for %d pods", others, b.BBR.Pods)
	}
	return "BBR"
}

// Text returns the line shown in the status of the node.
func (b *Status) Text() string {
	text := fmt.Sprintf("EDT with BPF [%s] [%s], %d pods with a rate", b.congestion(), strings.Join(b.Devices, ", "), b.Pods)
	if b.Dropped > 0 {
		text += fmt.Sprintf(", %d packets dropped for lack of room to wait", b.Dropped)
	}
	return text
}

// Findings says what keeps the node from doing its job.
func (b *Status) Findings(say func(string, ...any)) {
	if b == nil {
		return
	}
	if b.Error != "" {
		say("Pods may send faster than they should: %s.", b.Error)
	}
	if b.BBR != nil && b.BBR.Error != "" {
		say("Pods' connections use %s instead of BBR: %s.", b.Congestion, b.BBR.Error)
	}
	for _, name := range slices.Sorted(maps.Keys(b.Lacking)) {
		say("Packets do not wait at device %s for their time to leave. If that is too far ahead, they are dropped: %s.", name, b.Lacking[name])
	}
}
