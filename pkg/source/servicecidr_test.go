package source

import (
	"fmt"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A ServiceCIDR has its ranges until it is being deleted. What is no range is a problem, and the rest
// counts.
func TestServiceCIDR(t *testing.T) {
	object := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", UID: "u"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"fd00:96::/108", "10.96.0.7/12", "10.96.0.0/12", "10.96.0.0", "::ffff:10.0.0.0/104", ""}},
	}
	got := ServiceCIDR(object)
	if text := fmt.Sprint(got.Name, got.UID, got.CIDRs); text != "kubernetesu[10.96.0.0/12 fd00:96::/108]" {
		t.Errorf("got %s", text)
	}
	if len(got.Problems) != 3 || got.Problems[0].Reason != "InvalidCIDR" {
		t.Errorf("problems: %v", got.Problems)
	}
	object.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	if got := ServiceCIDR(object); got != nil {
		t.Errorf("being deleted: %v", got)
	}
}
