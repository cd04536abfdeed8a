package kube

import (
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
	"fairlead.io/fairlead/pkg/source/podslices"
)

// clusterPods follows the pods of all nodes while policies need them.
func clusterPods(cfg *Config, core rest.Interface) *demanded {
	k := newKind(allPods(core, cfg.ClusterPods.SetPod, cfg.ClusterPods.DeletePod, cfg.ClusterPods.ReplacePods), cfg.Log)
	return &demanded{
		followed: k, stopAfter: stopAfter, changed: make(chan struct{}, 1), lacks: func() string { return "" },
		ended: func() { k.stopped(); cfg.ClusterPods.ForgetPods() },
	}
}

// allPods are the pods of all nodes that own an address.
func allPods(core rest.Interface, set func(*model.PolicyPod), drop func(model.Name), replace func([]*model.PolicyPod)) resource[*corev1.Pod, model.PolicyPod] {
	// A list has the pods of a Deployment one behind the other. Until all have come they are kept as they are, so
	// those that have the same labels and ports share them.
	var last atomic.Pointer[model.PolicyPod]
	translate := func(pod *corev1.Pod) *model.PolicyPod {
		is := source.PolicyPod(pod)
		if was := last.Load(); was != nil {
			is.Share(was)
		}
		last.Store(is)
		return is
	}
	return resource[*corev1.Pod, model.PolicyPod]{
		name: "clusterpods", path: "pods", client: core,
		object: &corev1.Pod{}, list: func() runtime.Object { return &corev1.PodList{} },
		selected: func(options *metav1.ListOptions) { options.FieldSelector = withAddresses }, translate: translate,
		set: set, drop: drop, replace: replace,
	}
}

// silentAfter is how long the writer of PodSlices may say nothing until agents take it for gone.
const silentAfter = 5 * sliceRenewal

// slicedPods follows the pods of all nodes while policies need them, by PodSlices.
func slicedPods(cfg *Config, client rest.Interface) *demanded {
	merge := podslices.NewMerge(cfg.ClusterPods)
	k := newKind(resource[*source.CheckedPodSlice, source.PodsOfSlice]{
		name: "podslices", client: client,
		object: &source.CheckedPodSlice{}, list: func() runtime.Object { return &source.CheckedPodSliceList{} },
		selected: func(*metav1.ListOptions) {}, translate: source.PodSlicePods, lacking: lackingEvery, awaited: true,
		set: merge.Set, drop: merge.Delete, replace: merge.Replace,
	}, cfg.Log)
	return &demanded{
		followed: k, stopAfter: stopAfter, changed: make(chan struct{}, 1),
		lacks: func() string {
			switch is := k.status(); {
			case is.Lacking:
				return "the API server knows no PodSlices, or the agent may not read them: install the chart with policyPods: slices, or give agents --policy-pods=watch"
			case !is.Synced:
				return ""
			case !merge.Complete():
				return "fairlead controller has not written the PodSlices of all pods yet: it has to run with --policy-pods=slices"
			case merge.Silent() > silentAfter:
				return fmt.Sprintf("fairlead controller has renewed no PodSlice for %s, so pods may have changed since: look for its pods and their logs, and whether they run with --policy-pods=slices",
					merge.Silent().Round(time.Minute))
			}
			return ""
		},
		ended: func() { k.stopped(); merge.Forget(); cfg.ClusterPods.ForgetPods() },
	}
}
