package optout

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Rules say which pods opt out without an annotation.
type Rules struct {
	Runtimes []string // patterns for path.Match: names of RuntimeClasses, or "kubevirt" for KubeVirt's pods
	Meshes   []string // names of service meshes
	// Proxies says that pods may have a proxy on their node, which must see the Services that they
	// dial.
	Proxies bool
}

// ParseRules parses comma-separated lists. known are the meshes that can be recognized.
func ParseRules(runtimes, meshes string, known []string) (Rules, error) {
	rules := Rules{Runtimes: entries(runtimes), Meshes: entries(meshes)}
	for _, pattern := range rules.Runtimes {
		if _, err := path.Match(pattern, ""); err != nil {
			return Rules{}, fmt.Errorf("runtime pattern %q: %w: use * for any text, as in kata*", pattern, err)
		}
	}
	for _, mesh := range rules.Meshes {
		if !slices.Contains(known, mesh) {
			return Rules{}, fmt.Errorf("unknown mesh %q: known meshes are %s", mesh, strings.Join(known, ", "))
		}
	}
	return rules, nil
}

func entries(list string) []string {
	var out []string
	for entry := range strings.SplitSeq(list, ",") {
		if entry = strings.TrimSpace(entry); entry != "" {
			out = append(out, entry)
		}
	}
	return out
}

// reason is why a pod has opted out.
type reason struct {
	why  uint32 // value in the map
	text string
}

// decide reports whether a pod has opted out, and why. What the pod itself says, also that it has a
// proxy, takes precedence over its namespace's annotation, and that over the rules.
func (r *Rules) decide(pod *model.Pod, namespace model.SocketLB) (reason, bool) {
	switch {
	case pod.SocketLB == model.SocketLBOff:
		return reason{maps.OptoutByPod, "annotation of the pod"}, true
	case pod.SocketLB == model.SocketLBOn:
		return reason{}, false
	case r.Proxies && pod.Proxy != "" && !pod.HostNetwork:
		return reason{maps.OptoutByProxy, "proxy " + pod.Proxy}, true
	case namespace == model.SocketLBOff:
		return reason{maps.OptoutByNamespace, "annotation of the namespace"}, true
	case namespace == model.SocketLBOn:
		return reason{}, false
	case pod.Runtime != "" && slices.ContainsFunc(r.Runtimes, func(pattern string) bool { return matches(pattern, pod.Runtime) }):
		return reason{maps.OptoutByRuntime, "runtime " + pod.Runtime}, true
	case pod.Mesh != "" && slices.Contains(r.Meshes, pod.Mesh):
		return reason{maps.OptoutByMesh, "mesh " + pod.Mesh}, true
	}
	return reason{}, false
}

func matches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}
