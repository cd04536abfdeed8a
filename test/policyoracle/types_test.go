package policyoracle

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"fairlead.io/fairlead/pkg/source"
)

// TestTypes checks that our types of ClusterNetworkPolicies read and write what the API's do: random
// objects go from one to the other and back.
func TestTypes(t *testing.T) {
	g := &generator{rand.New(rand.NewPCG(1, 1))}
	for range 2000 {
		in := g.clusterPolicy("p", pick(g, "Admin", "Baseline"))
		for i := range in.Spec.Egress {
			in.Spec.Egress[i].Name = pick(g, "", "a rule")
			in.Spec.Egress[i].To = append(in.Spec.Egress[i].To, source.ClusterPeer{Nodes: &metav1.LabelSelector{}}, source.ClusterPeer{DomainNames: []string{"example.com."}})
			in.Spec.Egress[i].Protocols = append(in.Spec.Egress[i].Protocols, source.ClusterProtocol{DestinationNamedPort: "http"})
		}
		var theirs v1alpha2.ClusterNetworkPolicy
		strict(t, in, &theirs)
		out := &source.ClusterPolicy{}
		text, err := json.Marshal(theirs.Spec)
		if err != nil {
			t.Fatal(err)
		}
		strict(t, json.RawMessage(text), &out.Spec)
		if !reflect.DeepEqual(in.Spec, out.Spec) {
			t.Fatalf("have %+v, want %+v", out.Spec, in.Spec)
		}
	}
	for _, pair := range [][2]any{
		{source.ClusterPolicySpec{}, v1alpha2.ClusterNetworkPolicySpec{}}, {source.ClusterSubject{}, v1alpha2.ClusterNetworkPolicySubject{}},
		{source.ClusterPods{}, v1alpha2.NamespacedPod{}}, {source.ClusterPeer{}, v1alpha2.ClusterNetworkPolicyEgressPeer{}},
		{source.ClusterProtocol{}, v1alpha2.ClusterNetworkPolicyProtocol{}}, {source.ClusterPortMatch{}, v1alpha2.ClusterNetworkPolicyProtocolTCP{}},
		{source.ClusterPort{}, v1alpha2.Port{}}, {source.ClusterRange{}, v1alpha2.PortRange{}},
	} {
		if have, want := tags(pair[0]), tags(pair[1]); !reflect.DeepEqual(have, want) {
			t.Errorf("%T has the fields %v, the API's has %v", pair[0], have, want)
		}
	}
	if group := source.ClusterPolicyGroup(); group.String() != v1alpha2.GroupVersion.String() {
		t.Errorf("the group is %s, the API's is %s", group, v1alpha2.GroupVersion)
	}
}

// strict reads what another type wrote. That no field is lost, the way back and the tags show.
func strict(t *testing.T, in, out any) {
	t.Helper()
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatal(err)
	}
}

func tags(of any) map[string]bool {
	out := map[string]bool{}
	for field := range reflect.TypeOf(of).Fields() {
		out[field.Tag.Get("json")] = true
	}
	return out
}
