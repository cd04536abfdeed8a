package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// A null value leaves the agent's default, or is refused with a sentence where there is none: no
// template may stumble over it.
func TestNull(t *testing.T) {
	t.Parallel()
	refused := []string{
		"bandwidthManager", "bpf", "bpf.root", "cni", "cni.binPath", "cni.cachePath", "cni.confName", "cni.confPath", "dashboards", "image", "image.repository",
		"ipMasqAgent", "ipMasqAgent.configMap", "k8sServicePort", "loadBalancer.dsrDispatch", "metrics", "metrics.podMonitor", "metrics.prometheusRule",
		"metrics.serviceMonitor", "podNetwork", "rbac", "ready", "ready.address", "serviceAccount", "sockmap",
	}
	// Everything that reads values is switched on.
	on := []values{
		at("ipMasqAgent.enabled", true), at("sockmap.enabled", true), at("bandwidthManager", values{"enabled": true, "bbr": true}), at("loadBalancer.mode", "dsr"),
		at("metrics", values{"address": ":1", "podMonitor": values{"enabled": true}, "prometheusRule": values{"enabled": true}}), at("dashboards.enabled", true),
	}
	for _, path := range refused {
		if _, err := template(t, append(on, at(path, nil))...); err == nil || !strings.Contains(err.Error(), ": "+path+": cannot be null") {
			t.Errorf("%s: %v", path, err)
		}
	}
	keep := []string{"k8sServiceHost", "metrics.address"} // this test needs them
	leaves, sections := slices.Sorted(maps.Keys(standard(t))), map[string]bool{}
	for _, path := range leaves {
		for i, c := range path {
			if c == '.' {
				sections[path[:i]] = true
			}
		}
	}
	for name, paths := range map[string][]string{"leaves": leaves, "sections": slices.Sorted(maps.Keys(sections))} {
		given := on
		if name == "leaves" {
			given = on[:3]
		}
		for _, path := range paths {
			// What is switched on stays so.
			if slices.Contains(refused, path) || slices.Contains(keep, path) || strings.HasSuffix(path, ".enabled") || path == "bandwidthManager.bbr" {
				continue
			}
			given = append(given, at(path, nil))
		}
		out, err := template(t, given...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		all := manifests(t, out)
		if err := starts(t, configMap(t, all)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(out, "nil>") {
			t.Errorf("%s: a value that is null is passed on:\n%s", name, out)
		}
	}
}
