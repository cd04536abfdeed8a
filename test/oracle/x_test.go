package oracle

import (
	"testing"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/source"
	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/proxy"
	"sigs.k8s.io/yaml"
)

func TestX(t *testing.T) {
	_ = lb.NewCompiler
	_ = source.Slice
	_ = logr.Discard
	_ = discovery.AddressTypeIPv4
	_ = metav1.Now
	_ = klog.SetLogger
	_ = yaml.Marshal
	_ = proxy.NewServiceChangeTracker(v1.IPv4Protocol, nil, nil)
}
