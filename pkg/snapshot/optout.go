package snapshot

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/phrase"
)

// Optout is a row of optout: a pod whose sockets are left alone, and what identifies its processes.
type Optout struct {
	Kind  string       `json:"kind"` // "netns" or "cgroup"
	ID    uint64       `json:"id"`
	Pod   string       `json:"pod"`
	Addrs []netip.Addr `json:"addresses,omitempty"` // empty for a pod in the node's network namespace
	Why   string       `json:"why"`

	Key maps.OptoutKey `json:"-"`
}

// readOptouts returns the rows of optout, by pod.
func readOptouts(m *maps.Maps) ([]Optout, error) {
	rows, err := maps.OptoutRows(m.Optout)
	if err != nil {
		return nil, err
	}
	var list []Optout
	for key, row := range rows {
		_, addrs := maps.OptoutPod(row)
		list = append(list, Optout{
			Kind: optoutKind(key.Kind), ID: key.Id, Pod: NameOf(&row.Pod), Addrs: addrs, Why: optoutWhy(row.Why), Key: key,
		})
	}
	slices.SortFunc(list, func(a, b Optout) int {
		return cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

func optoutKind(kind uint32) string {
	switch kind {
	case maps.OptoutNetns:
		return "netns"
	case maps.OptoutCgroup:
		return "cgroup"
	}
	return phrase.Unknown("kind", kind)
}

func optoutWhy(why uint32) string {
	switch why {
	case maps.OptoutByPod:
		return "annotation of the pod"
	case maps.OptoutByNamespace:
		return "annotation of the namespace"
	case maps.OptoutByRuntime:
		return "runtime"
	case maps.OptoutByMesh:
		return "mesh"
	case maps.OptoutByProxy:
		return "proxy"
	}
	return phrase.Unknown("why", why)
}
