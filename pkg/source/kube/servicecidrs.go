package kube

import (
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

// serviceCIDRs follows the ServiceCIDRs of the cluster. Kubernetes has them from 1.33 on, so a
// cluster that is upgraded gets them later.
func serviceCIDRs(cfg *Config, client rest.Interface) follower {
	return newKind(resource[*networkingv1.ServiceCIDR, model.ServiceCIDR]{
		name: "servicecidrs", client: client,
		object: &networkingv1.ServiceCIDR{}, list: func() runtime.Object { return &networkingv1.ServiceCIDRList{} },
		selected: func(*metav1.ListOptions) {}, translate: source.ServiceCIDR, lacking: lackingEvery,
		set:     cfg.Store.SetServiceCIDR,
		drop:    func(name model.Name) { cfg.Store.DeleteServiceCIDR(name.Name) },
		replace: cfg.Store.ReplaceServiceCIDRs,
	}, cfg.Log)
}
