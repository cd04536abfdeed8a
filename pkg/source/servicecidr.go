package source

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.io/fairlead/pkg/model"
)

// AddServiceCIDRs registers ServiceCIDRs with a scheme, but not the rest of their group.
func AddServiceCIDRs(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(networkingv1.SchemeGroupVersion, &networkingv1.ServiceCIDR{}, &networkingv1.ServiceCIDRList{})
	metav1.AddToGroupVersion(scheme, networkingv1.SchemeGroupVersion)
	return nil
}

// ServiceCIDR translates a ServiceCIDR. It returns nil for one that is being deleted: no Service gets
// an address from it anymore, and its range is about to become free for others.
func ServiceCIDR(c *networkingv1.ServiceCIDR) *model.ServiceCIDR {
	if c.DeletionTimestamp != nil {
		return nil
	}
	p := &problems{}
	out := &model.ServiceCIDR{Name: c.Name, UID: string(c.UID)}
	for _, text := range c.Spec.CIDRs {
		cidr, err := netip.ParsePrefix(text)
		if err != nil || cidr.Addr().Is4In6() {
			p.add("InvalidCIDR", "spec.cidrs has %.64q, which is no network such as 10.96.0.0/12: correct it", text)
			continue
		}
		out.CIDRs = append(out.CIDRs, cidr.Masked())
	}
	slices.SortFunc(out.CIDRs, netip.Prefix.Compare)
	out.CIDRs = slices.Compact(out.CIDRs)
	out.Problems = p.all()
	return out
}
