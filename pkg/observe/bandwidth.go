package observe

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// BandwidthStatus is how pods are kept to their rates.
type BandwidthStatus struct {
	Devices    []string          `json:"devices,omitempty"` // where packets wait until they may leave
	Lacking    map[string]string `json:"lacking,omitempty"` // device name to the reason why packets do not wait there
	Pods       int               `json:"pods"`              // pods with a rate
	Dropped    uint64            `json:"dropped"`           // packets dropped for lack of room to wait
	Congestion string            `json:"congestion"`        // the default congestion control
	BBR        *BBRStatus        `json:"bbr,omitempty"`     // nil unless configured
	Error      string            `json:"error,omitempty"`
}

// BBRStatus says which connections use BBR congestion control.
type BBRStatus struct {
	Annotated bool   `json:"annotated"` // only pods that ask for it; otherwise all except those that opt out
	Pods      int    `json:"pods"`      // pods whose new connections use it
	Error     string `json:"error,omitempty"`
}

// congestion names the congestion control of pods' connections, and in second place BBR if only
// some pods use it.
func (b *BandwidthStatus) congestion() string {
	others := strings.ToUpper(b.Congestion)
	switch {
	case b.BBR == nil || b.BBR.Error != "" || others == "BBR":
		return others
	case b.BBR.Annotated:
		return fmt.Sprintf("%s, BBR for %d pods", others, b.BBR.Pods)
	}
	return "BBR"
}

func (b *BandwidthStatus) text() string {
	text := fmt.Sprintf("EDT with BPF [%s] [%s], %d pods with a rate", b.congestion(), strings.Join(b.Devices, ", "), b.Pods)
	if b.Dropped > 0 {
		text += fmt.Sprintf(", %d packets dropped for lack of room to wait", b.Dropped)
	}
	return text
}

func (b *BandwidthStatus) findings(say func(string, ...any)) {
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
