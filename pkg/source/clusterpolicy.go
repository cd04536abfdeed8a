package source

import (
	"bytes"
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	strictjson "sigs.k8s.io/json"
)

// ClusterPolicyGroup is the API group of ClusterNetworkPolicies.
func ClusterPolicyGroup() schema.GroupVersion {
	return schema.GroupVersion{Group: "policy.networking.k8s.io", Version: "v1alpha2"}
}

// ClusterPolicy is a ClusterNetworkPolicy of sigs.k8s.io/network-policy-api, which as a dependency
// would bring the controllers' libraries with it. Both rules have all fields of a peer, so that
// what only the other direction may have is seen and refused.
type ClusterPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec ClusterPolicySpec `json:"spec"`
	// Status is left as it is: agents have no use for it, and must not fail by what others write there.
	Status json.RawMessage `json:"status,omitempty"`

	unread []error // fields that the type does not have, or that are there twice
}

// UnmarshalJSON also notes which fields are not read, because a version of the API that has them came after this one: a rule
// without them may be a wider one.
func (c *ClusterPolicy) UnmarshalJSON(text []byte) (err error) {
	type fields ClusterPolicy // has not this method
	c.unread, err = strictjson.UnmarshalStrict(text, (*fields)(c))
	return err
}

// Unread returns an error for each field that was not read.
func (c *ClusterPolicy) Unread() []error { return c.unread }

// ClusterPolicySpec is the spec of a ClusterPolicy.
type ClusterPolicySpec struct {
	Tier     string         `json:"tier"`
	Priority int32          `json:"priority"`
	Subject  ClusterSubject `json:"subject"`
	Ingress  []ClusterRule  `json:"ingress,omitempty"`
	Egress   []ClusterRule  `json:"egress,omitempty"`
}

// ClusterSubject says whose traffic a policy is about.
type ClusterSubject struct {
	Namespaces *metav1.LabelSelector `json:"namespaces,omitempty"`
	Pods       *ClusterPods          `json:"pods,omitempty"`
}

// ClusterPods are pods of several namespaces.
type ClusterPods struct {
	NamespaceSelector metav1.LabelSelector  `json:"namespaceSelector"`
	PodSelector       *metav1.LabelSelector `json:"podSelector"` // the API asks for it; nil selects nothing
}

// ClusterRule is a rule of either direction: ingress has From, egress has To.
type ClusterRule struct {
	Name      string            `json:"name,omitempty"`
	Action    string            `json:"action"`
	From      []ClusterPeer     `json:"from,omitempty"`
	To        []ClusterPeer     `json:"to,omitempty"`
	Protocols []ClusterProtocol `json:"protocols,omitzero"` // nil for all
}

// ClusterPeer is a set of peers.
type ClusterPeer struct {
	Namespaces  *metav1.LabelSelector `json:"namespaces,omitempty"`
	Pods        *ClusterPods          `json:"pods,omitempty"`
	Nodes       *metav1.LabelSelector `json:"nodes,omitempty"`
	Networks    []string              `json:"networks,omitempty"`
	DomainNames []string              `json:"domainNames,omitempty"`
}

// ClusterProtocol is what packets are matched by.
type ClusterProtocol struct {
	TCP                  *ClusterPortMatch `json:"tcp,omitempty"`
	UDP                  *ClusterPortMatch `json:"udp,omitempty"`
	SCTP                 *ClusterPortMatch `json:"sctp,omitempty"`
	DestinationNamedPort string            `json:"destinationNamedPort,omitempty"`
}

// ClusterPortMatch matches all ports, or some.
type ClusterPortMatch struct {
	DestinationPort *ClusterPort `json:"destinationPort,omitempty"`
}

// ClusterPort is a port or a range of ports.
type ClusterPort struct {
	Number int32         `json:"number,omitempty"`
	Range  *ClusterRange `json:"range,omitempty"`
}

// ClusterRange is a range of ports. Both ends are in it.
type ClusterRange struct {
	Start int32 `json:"start"`
	End   int32 `json:"end"`
}

// ClusterPolicyList is a list of ClusterPolicies.
type ClusterPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterPolicy `json:"items"`
}

// AddClusterPolicies registers ClusterNetworkPolicies with a scheme.
func AddClusterPolicies(scheme *runtime.Scheme) error {
	scheme.AddKnownTypeWithName(ClusterPolicyGroup().WithKind("ClusterNetworkPolicy"), &ClusterPolicy{})
	scheme.AddKnownTypeWithName(ClusterPolicyGroup().WithKind("ClusterNetworkPolicyList"), &ClusterPolicyList{})
	metav1.AddToGroupVersion(scheme, ClusterPolicyGroup())
	return nil
}

// DeepCopyObject returns a copy.
func (c *ClusterPolicy) DeepCopyObject() runtime.Object {
	return &ClusterPolicy{TypeMeta: c.TypeMeta, ObjectMeta: *c.ObjectMeta.DeepCopy(), Spec: copied(c.Spec), Status: bytes.Clone(c.Status), unread: slices.Clone(c.unread)}
}

// DeepCopyObject returns a copy.
func (l *ClusterPolicyList) DeepCopyObject() runtime.Object {
	out := &ClusterPolicyList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*ClusterPolicy))
	}
	return out
}

// copied copies a spec by way of its JSON: few objects are ever copied, and no field is missed.
func copied[S any](in S) (out S) {
	text, err := json.Marshal(in)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		panic(err) // it consists of texts and numbers
	}
	return out
}
