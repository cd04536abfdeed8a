package source

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.io/fairlead/pkg/model"
)

// PodSlicesComplete is the name of the PodSlice that holds no pods and says that the others have held all pods
// of the cluster at least once. No name sorts before it: a server that deletes all PodSlices, as with their
// definition, begins with this one, so that agents do not take that for the end of all pods.
const PodSlicesComplete = "0"

// PodSlice holds some pods of one namespace, as policies see them. Its name is that of the namespace, a dot and a
// number. The chart's CustomResourceDefinition, in podslices.yaml, describes the same to the API server.
//
// Whatever it holds, it can be decoded: what cannot be used counts as empty, so that the writer replaces it.
type PodSlice struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PodSliceSpec `json:"spec"`
}

// PodSliceSpec is what a PodSlice holds.
type PodSliceSpec struct {
	Namespace string     `json:"namespace,omitempty"`
	Shapes    []PodShape `json:"shapes,omitempty"`
	// Renewed is in the slice without pods: when its writer last said that it is there, in seconds since 1970.
	Renewed int64 `json:"renewed,omitempty"`
}

// PodShape is what selectors see of some pods, and the pods.
type PodShape struct {
	Labels map[string]string `json:"labels,omitempty"`
	Ports  []SlicedPort      `json:"ports,omitempty"`
	Pods   []SlicedPod       `json:"pods"`
}

// SlicedPort is a port of a container that has a name.
type SlicedPort struct {
	Name     string          `json:"name"`
	Protocol corev1.Protocol `json:"protocol"`
	Port     int32           `json:"port"`
}

// SlicedPod is a pod with what it has for itself.
type SlicedPod struct {
	Name    string   `json:"name"`
	Created int64    `json:"created,omitempty"` // seconds since 1970
	IPs     []string `json:"ips"`               // at most one of each family
}

// UnmarshalJSON decodes a PodSlice.
func (p *PodSlice) UnmarshalJSON(text []byte) error {
	type plain PodSlice
	var out plain
	if err := json.Unmarshal(text, &out); err != nil {
		var known struct {
			metav1.TypeMeta `json:",inline"`
			Metadata        metav1.ObjectMeta `json:"metadata"`
		}
		if err := json.Unmarshal(text, &known); err != nil {
			return err
		}
		out = plain{TypeMeta: known.TypeMeta, ObjectMeta: known.Metadata}
	}
	*p = PodSlice(out)
	return nil
}

// PodSliceList is a list of PodSlices.
type PodSliceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PodSlice `json:"items"`
}

// AddPodSlices registers PodSlices with the scheme of who writes them.
func AddPodSlices(scheme *runtime.Scheme) error {
	return addPodSlices(scheme, &PodSlice{}, &PodSliceList{})
}

func addPodSlices(scheme *runtime.Scheme, one, list runtime.Object) error {
	scheme.AddKnownTypeWithName(AccelerationGroup().WithKind("PodSlice"), one)
	scheme.AddKnownTypeWithName(AccelerationGroup().WithKind("PodSliceList"), list)
	metav1.AddToGroupVersion(scheme, AccelerationGroup())
	return nil
}

// DeepCopyObject returns a copy.
func (p *PodSlice) DeepCopyObject() runtime.Object {
	return &PodSlice{TypeMeta: p.TypeMeta, ObjectMeta: *p.ObjectMeta.DeepCopy(), Spec: copied(p.Spec)}
}

// DeepCopyObject returns a copy.
func (l *PodSliceList) DeepCopyObject() runtime.Object {
	out := &PodSliceList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*PodSlice))
	}
	return out
}

// CheckedPodSlice is a PodSlice that can be decoded only if all of it can be used. An agent that took a part of it
// would take a pod for another one, or for none, and a rule that denies may be about just that pod.
type CheckedPodSlice struct {
	PodSlice

	pods    []PodOfSlice
	renewed int64
}

// PodOfSlice is a pod of a slice. Equal pods have equal sums.
type PodOfSlice struct {
	*model.PolicyPod

	Sum uint64
}

// PodsOfSlice are the pods of a slice.
type PodsOfSlice struct {
	Name     string
	Complete bool // it has no pods, and is the word that the others have held all
	Renewed  int64
	Pods     []PodOfSlice
}

// PodSlicePods returns the pods of a slice.
func PodSlicePods(in *CheckedPodSlice) *PodsOfSlice {
	return &PodsOfSlice{Name: in.Name, Complete: in.Name == PodSlicesComplete, Renewed: in.renewed, Pods: in.pods}
}

// UnmarshalJSON decodes and checks a PodSlice.
func (c *CheckedPodSlice) UnmarshalJSON(text []byte) error {
	type plain PodSlice
	var out plain
	if err := json.Unmarshal(text, &out); err != nil {
		return err
	}
	pods, err := podsOfSlice(out.Name, &out.Spec)
	if err != nil {
		return fmt.Errorf("PodSlice %.317q: %w", out.Name, err)
	}
	// The pods are all that is asked for.
	*c = CheckedPodSlice{PodSlice: PodSlice{TypeMeta: out.TypeMeta, ObjectMeta: out.ObjectMeta}, pods: pods, renewed: out.Spec.Renewed}
	return nil
}

// CheckedPodSliceList is a list of CheckedPodSlices.
type CheckedPodSliceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CheckedPodSlice `json:"items"`
}

// AddCheckedPodSlices registers PodSlices with the scheme of who reads them.
func AddCheckedPodSlices(scheme *runtime.Scheme) error {
	return addPodSlices(scheme, &CheckedPodSlice{}, &CheckedPodSliceList{})
}

// DeepCopyObject returns a copy. The pods are shared, since nobody changes them.
func (c *CheckedPodSlice) DeepCopyObject() runtime.Object {
	return &CheckedPodSlice{PodSlice: *c.PodSlice.DeepCopyObject().(*PodSlice), pods: c.pods, renewed: c.renewed}
}

// DeepCopyObject returns a copy.
func (l *CheckedPodSliceList) DeepCopyObject() runtime.Object {
	out := &CheckedPodSliceList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*CheckedPodSlice))
	}
	return out
}

// podsOfSlice translates what a slice holds, or says what of it cannot be.
func podsOfSlice(name string, spec *PodSliceSpec) ([]PodOfSlice, error) {
	if name == "" && spec.Namespace == "" && len(spec.Shapes) == 0 {
		return nil, nil // not a slice, but a bookmark of a watch: it has a version and nothing else
	}
	if name == PodSlicesComplete {
		if spec.Namespace != "" || len(spec.Shapes) > 0 {
			return nil, fmt.Errorf("it holds pods, which none of this name does")
		}
		return nil, nil
	}
	if namespace, _, found := strings.Cut(name, "."); !found || namespace != spec.Namespace || namespace == "" {
		return nil, fmt.Errorf("its pods are of namespace %.64q, of which its name does not say that", spec.Namespace)
	}
	var list []PodOfSlice
	names := map[string]struct{}{}
	for i := range spec.Shapes {
		shape := &spec.Shapes[i]
		ports, err := slicedPorts(shape.Ports)
		if err != nil {
			return nil, err
		}
		sum := sumOfShape(shape)
		for j := range shape.Pods {
			in := &shape.Pods[j]
			addrs, err := slicedAddrs(in.IPs)
			if _, twice := names[in.Name]; err == nil && (twice || in.Name == "") {
				err = fmt.Errorf("there is another one of that name, or it has none")
			}
			if err != nil {
				return nil, fmt.Errorf("pod %.253q: %w", in.Name, err)
			}
			names[in.Name] = struct{}{}
			pod := &model.PolicyPod{Name: model.Name{Namespace: spec.Namespace, Name: in.Name}, Created: in.Created, Addrs: addrs, Labels: shape.Labels, Ports: ports}
			list = append(list, PodOfSlice{pod, sumOfPod(sum, pod)})
		}
	}
	return list, nil
}

func slicedPorts(in []SlicedPort) (out []model.NamedPort, err error) {
	for _, port := range in {
		proto, known := protocol(port.Protocol)
		if !known || port.Name == "" || !isPort(port.Port) {
			return nil, fmt.Errorf("port %.64q %.64q %d is none", port.Name, port.Protocol, port.Port)
		}
		out = append(out, model.NamedPort{Name: port.Name, Protocol: proto, Port: uint16(port.Port)})
	}
	return out, nil
}

func slicedAddrs(in []string) (out []netip.Addr, err error) {
	for _, text := range in {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" || addr.Is4In6() || addr.IsUnspecified() || addr.IsMulticast() {
			return nil, fmt.Errorf("%.64q is no address of a pod", text)
		}
		out = append(out, addr)
	}
	if len(out) == 0 || len(out) > 2 || len(out) == 2 && out[0].Is4() == out[1].Is4() {
		return nil, fmt.Errorf("it has %d addresses, and not one or one of each family", len(out))
	}
	return out, nil
}

// podSeed is another one in each process: sums are never written anywhere.
var podSeed = maphash.MakeSeed()

func sumOfShape(shape *PodShape) uint64 {
	text, err := json.Marshal(PodShape{Labels: shape.Labels, Ports: shape.Ports}) // maps are sorted there
	if err != nil {
		panic(err) // it consists of texts and numbers
	}
	return maphash.Bytes(podSeed, text)
}

func sumOfPod(shape uint64, pod *model.PolicyPod) uint64 {
	has := struct {
		shape   uint64
		created int64
		addrs   [2]netip.Addr
	}{shape: shape, created: pod.Created}
	copy(has.addrs[:], pod.Addrs)
	return maphash.Comparable(podSeed, has)
}
