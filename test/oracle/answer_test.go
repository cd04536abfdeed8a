package oracle

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"

	gocmp "github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"fairlead.io/fairlead/pkg/model"
)

// portKey identifies one port of the Service in one family.
type portKey struct {
	name     string
	protocol model.Protocol
	family   model.Family
}

// String returns the form used in reports.
func (k portKey) String() string {
	return k.name + "/" + k.protocol.String() + map[model.Family]string{model.IPv4: "4", model.IPv6: "6"}[k.family]
}

// answer is the outcome for one port on this node. Lists are sorted, and nil when empty.
type answer struct {
	ClusterIP           netip.AddrPort   `json:"clusterIP"`
	NodePort            netip.AddrPort   `json:"nodePort"` // on the unspecified address
	ExternalIPs         []netip.AddrPort `json:"externalIPs"`
	LoadBalancerIPs     []netip.AddrPort `json:"loadBalancerIPs"` // without those that are also external IPs
	SourceRanges        []netip.Prefix   `json:"sourceRanges"`
	HealthCheckNodePort uint16           `json:"healthCheckNodePort"`
	LocalReady          int              `json:"localReady"` // what health checks of load balancers get for that port
	AffinitySeconds     uint32           `json:"affinitySeconds"`
	InternalLocal       bool             `json:"internalLocal"`
	ExternalLocal       bool             `json:"externalLocal"`
	External            bool             `json:"externallyAccessible"`
	All                 []netip.AddrPort `json:"all"`
	Local               []netip.AddrPort `json:"local"`
	Reachable           []netip.AddrPort `json:"reachable"` // from this node, in either scope
}

// answers has one entry per port and family.
type answers map[portKey]*answer

// difference describes how two sets of answers differ, and returns "" if they do not.
func difference(upstream, ours answers) string {
	if reflect.DeepEqual(upstream, ours) {
		return ""
	}
	return gocmp.Diff(upstream.text(), ours.text())
}

func (a answers) text() string {
	named := make(map[string]*answer, len(a))
	for key, value := range a {
		named[key.String()] = value
	}
	b, err := yaml.Marshal(named)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// sorted returns the list sorted, or nil if it is empty. It keeps duplicates.
func sorted[T any](list []T, compare func(a, b T) int) []T {
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, compare)
	return list
}

// sortedFrontends sorts and drops duplicates.
func sortedFrontends(list []netip.AddrPort) []netip.AddrPort {
	return slices.Compact(sortedBackends(list))
}

func sortedBackends(list []netip.AddrPort) []netip.AddrPort {
	return sorted(list, netip.AddrPort.Compare)
}

func sortedPrefixes(list []netip.Prefix) []netip.Prefix {
	return slices.Compact(sorted(list, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	}))
}

// without returns the frontends that are not in others, or nil if there are none.
func without(list, others []netip.AddrPort) []netip.AddrPort {
	var out []netip.AddrPort
	for _, at := range list {
		if !slices.Contains(others, at) {
			out = append(out, at)
		}
	}
	return out
}
