package twin

import (
	"maps"
	"slices"
)

// known is a way in which an attacker interferes.
type known struct{ who, kind string }

// knownInterference lists what still has to be mended, with the reason: nothing.
func knownInterference() []known { return nil }

// unmended returns those kinds of what it sends that are known to interfere, or all others.
func (a *attacker) unmended(is bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(a.kinds)), func(kind string) bool {
		return is != slices.ContainsFunc(knownInterference(), func(k known) bool { return k.who == a.name && k.kind == kind })
	})
}
