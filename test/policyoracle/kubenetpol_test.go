package policyoracle

import (
	"context"
	"net"
	"reflect"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"
	"sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"
)

// packet has the layout of the type of that name there. What judging does not read has no name.
type packet struct {
	_                uint32          // its number in the queue
	_                corev1.IPFamily // which follows from the addresses
	srcIP, dstIP     net.IP
	proto            corev1.Protocol
	srcPort, dstPort int
	_                []byte // the payload
}

// evaluatePacket is not exported there.
//
//go:linkname evaluatePacket sigs.k8s.io/kube-network-policies/pkg/networkpolicy.(*Controller).evaluatePacket
func evaluatePacket(c *networkpolicy.Controller, ctx context.Context, p packet) bool

// kubeNetpol is kube-network-policies without a cluster and without a queue. It knows the former API
// of cluster policies only, AdminNetworkPolicy and its Baseline, to which ours are translated.
type kubeNetpol struct {
	controller                                  *networkpolicy.Controller
	namespaces, pods, policies, admin, baseline cache.Indexer
}

func newKubeNetpol(t *testing.T) *kubeNetpol {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1"}) // which nobody asks
	if err != nil {
		t.Fatal(err)
	}
	var none versioned.Interface
	core, apis := informers.NewSharedInformerFactory(client, 0), externalversions.NewSharedInformerFactory(none, 0).Policy().V1alpha1()
	k := &kubeNetpol{}
	k.controller, err = networkpolicy.NewController(client, core.Networking().V1().NetworkPolicies(), core.Core().V1().Namespaces(), core.Core().V1().Pods(),
		core.Core().V1().Nodes(), none, apis.AdminNetworkPolicies(), apis.BaselineAdminNetworkPolicies(),
		networkpolicy.Config{AdminNetworkPolicy: true, BaselineAdminNetworkPolicy: true, NRIdisabled: true, NodeName: "self"})
	if err != nil {
		t.Fatal(err)
	}
	k.namespaces, k.pods = core.Core().V1().Namespaces().Informer().GetIndexer(), core.Core().V1().Pods().Informer().GetIndexer()
	k.policies = core.Networking().V1().NetworkPolicies().Informer().GetIndexer()
	k.admin, k.baseline = apis.AdminNetworkPolicies().Informer().GetIndexer(), apis.BaselineAdminNetworkPolicies().Informer().GetIndexer()
	return k
}

// ownPods has the controller ask us who has an address. What it does itself panics for addresses that
// no pod has, if it does not listen to a container runtime.
func (k *kubeNetpol) ownPods(holder func(addr string) *corev1.Pod) {
	field := reflect.ValueOf(k.controller).Elem().FieldByName("getPodAssignedToIP")
	*(*func(string) *corev1.Pod)(unsafe.Pointer(field.UnsafeAddr())) = holder
}

func replace[T any](in cache.Indexer, objects []T) {
	list := make([]any, len(objects))
	for i := range objects {
		list[i] = objects[i]
	}
	if err := in.Replace(list, ""); err != nil {
		panic(err) // its keys are names
	}
}

func (k *kubeNetpol) set(s *state) {
	replace(k.namespaces, s.namespaces)
	replace(k.pods, s.pods)
	replace(k.policies, s.policies)
	k.ownPods(s.holder)
	var admin []*v1alpha1.AdminNetworkPolicy
	var baseline []*v1alpha1.BaselineAdminNetworkPolicy
	for _, policy := range s.cluster {
		if policy.Spec.Tier == "Admin" {
			admin = append(admin, adminPolicy(policy))
		} else {
			baseline = append(baseline, baselinePolicy(policy))
		}
	}
	replace(k.admin, admin)
	replace(k.baseline, baseline)
}

func (k *kubeNetpol) accepts(p probe) bool {
	return evaluatePacket(k.controller, context.Background(), packet{
		srcIP: net.ParseIP(p.src), dstIP: net.ParseIP(p.dst), proto: p.protocol, srcPort: 40000, dstPort: p.port,
	})
}
