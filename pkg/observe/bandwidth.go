package observe

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// BandwidthStatus is how pods are kept to their rates.
type BandwidthStatus struct {
	Devices    []string          `json:"devices,omitempty"` // at which packets wait until they may leave
	Lacking    map[string]string `json:"lacking,omitempty"` // by name: why they do not wait at a device
	Pods       int               `json:"pods"`              // that have a rate
	Dropped    uint64            `json:"dropped"`           // packets that found no room to wait
	Congestion string            `json:"congestion"`        // the congestion control of connections of the node
	Error      string            `json:"error,omitempty"`
}

func (b *BandwidthStatus) text() string {
	text := fmt.Sprintf("EDT with BPF [%s] [%s], %d pods with a rate", strings.ToUpper(b.Congestion), strings.Join(b.Devices, ", "), b.Pods)
	if b.Dropped > 0 {
		text += fmt.Sprintf(", %d packets that found no room to wait", b.Dropped)
	}
	return text
}

func (b *BandwidthStatus) judge(say func(string, ...any)) {
	if b == nil {
		return
	}
	if b.Error != "" {
		say("Pods may send faster than they should: %s.", b.Error)
	}
	for _, name := range slices.Sorted(maps.Keys(b.Lacking)) {
		say("Packets do not wait at device %s until they may leave, and are dropped instead once that is too far ahead: %s.", name, b.Lacking[name])
	}
}
