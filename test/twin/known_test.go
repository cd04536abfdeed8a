package twin

import (
	"maps"
	"slices"
)

// known is a way in which an attacker interferes, and why it still may.
type known struct {
	who, kind string
	why       string
}

// knownInterference lists what still has to be mended. It must become empty.
func knownInterference() []known {
	const (
		tunnel = "whatever reaches the tunnel's port of a node is taken out of the tunnel"
	)
	return []known{
		{"a pod", "vxlan in UDP", tunnel},
		{"a pod with CAP_NET_RAW", "vxlan in UDP", tunnel},
		{"a pod of another node", "vxlan in UDP", tunnel},
		{"a routed outsider", "vxlan in UDP", tunnel},
	}
}

// unmended returns those kinds of what it sends that are known to interfere, or all others.
func (a *attacker) unmended(is bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(a.kinds)), func(kind string) bool {
		return is != slices.ContainsFunc(knownInterference(), func(k known) bool { return k.who == a.name && k.kind == kind })
	})
}
