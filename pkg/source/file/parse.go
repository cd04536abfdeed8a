package file

import (
	gojson "encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
)

// key identifies an object across all files.
type key struct {
	kind string
	name model.Name
}

func (k key) String() string {
	if k.name.Namespace == "" {
		return k.kind + " " + k.name.Name
	}
	return k.kind + " " + k.name.String()
}

// object is one object in a file.
type object struct {
	key   key
	line  int
	value any              // a pointer to a type of pkg/model; nil if the agent ignores the object
	pod   *model.PolicyPod // the same for a pod of any node, if policies are followed
}

// envelope is the List that kubectl prints for several objects.
type envelope struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ListMeta     `json:"metadata"`
	Items           []gojson.RawMessage `json:"items"`
}

// parser collects the objects of one file.
type parser struct {
	target
	file    string
	objects []object
	lines   map[key]int
}

// target is whom objects are parsed for.
type target struct {
	self     string // this node
	policies bool   // are followed
}

// parse translates all objects of a file. Its error is a *FileError if the line is known.
func parse(name string, data []byte, to target) ([]object, error) {
	docs, err := documents(name, data)
	if err != nil {
		return nil, err
	}
	p := &parser{file: name, target: to, lines: map[key]int{}}
	for i := range docs {
		d := &docs[i]
		if err := d.convert(); err != nil {
			return nil, err
		}
		if err := p.document(d); err != nil {
			return nil, err
		}
		d.json = nil
	}
	return slices.Clip(p.objects), nil
}

func (p *parser) document(d *document) error {
	whole := part{doc: d, json: d.json}
	head, err := whole.head()
	if err != nil {
		return err
	}
	if head.APIVersion != "v1" || head.Kind != "List" {
		return p.object(whole, head)
	}
	var all envelope
	if err := whole.decode(&all); err != nil {
		return err
	}
	for i, item := range all.Items {
		one := part{doc: d, json: item, path: []string{"items", strconv.Itoa(i)}}
		head, err := one.head()
		if err != nil {
			return err
		}
		if err := p.object(one, head); err != nil {
			return err
		}
	}
	return nil
}

// object decodes, completes and translates one object.
func (p *parser) object(in part, head metav1.TypeMeta) error {
	switch head.APIVersion + " " + head.Kind {
	case "v1 Service":
		var o corev1.Service
		return p.add(in, &o, &o.ObjectMeta, func() any {
			completeService(&o)
			return present(source.Standalone(&o))
		})
	case "discovery.k8s.io/v1 EndpointSlice":
		var o discoveryv1.EndpointSlice
		return p.add(in, &o, &o.ObjectMeta, func() any {
			completeSlice(&o)
			return present(source.Slice(&o))
		})
	case "networking.k8s.io/v1 ServiceCIDR":
		var o networkingv1.ServiceCIDR
		return p.add(in, &o, &o.ObjectMeta, func() any { return present(source.ServiceCIDR(&o)) })
	case "v1 Node":
		var o corev1.Node
		return p.add(in, &o, &o.ObjectMeta, func() any { return p.node(&o) })
	case "v1 Namespace":
		var o corev1.Namespace
		return p.add(in, &o, &o.ObjectMeta, func() any {
			completeNamespace(&o)
			return source.Namespace(&o)
		})
	case "v1 Pod":
		return p.pod(in)
	case "fairlead.io/v1alpha1 SocketAcceleration":
		var o source.SocketAcceleration
		return p.add(in, &o, &o.ObjectMeta, func() any { return source.Acceleration(&o) })
	}
	if p.policies {
		if known, err := p.policy(in, head); known {
			return err
		}
	}
	return in.errorf([]string{"kind"}, "kind %q of apiVersion %q is not supported: use Service, Node, Namespace, Pod or List of v1, EndpointSlice of "+
		"discovery.k8s.io/v1, ServiceCIDR of networking.k8s.io/v1, or SocketAcceleration of fairlead.io/v1alpha1",
		head.Kind, head.APIVersion)
}

// add decodes an object into into, whose metadata is meta, and records what translate makes of it.
func (p *parser) add(in part, into any, meta *metav1.ObjectMeta, translate func() any) error {
	if err := in.decode(into); err != nil {
		return err
	}
	if meta.Name == "" {
		return in.errorf([]string{"metadata"}, "metadata.name is missing: name the object")
	}
	kind := reflect.TypeOf(into).Elem().Name()
	if kind == "ClusterPolicy" {
		kind = "ClusterNetworkPolicy"
	}
	switch {
	case kind == "Node" || kind == "Namespace" || kind == "ServiceCIDR" || kind == "ClusterNetworkPolicy":
		meta.Namespace = ""
	case meta.Namespace == "":
		meta.Namespace = metav1.NamespaceDefault
	}
	k := key{kind, model.Name{Namespace: meta.Namespace, Name: meta.Name}}
	line := in.line()
	if first, ok := p.lines[k]; ok {
		return &FileError{Line: line, Message: fmt.Sprintf("%s is also at %s:%d: keep one of them", k, p.file, first)}
	}
	p.lines[k] = line
	p.objects = append(p.objects, object{key: k, line: line, value: translate()})
	return nil
}

// pod decodes a Pod. Only those of this node are served, but policies may name all.
func (p *parser) pod(in part) error {
	var o corev1.Pod
	err := p.add(in, &o, &o.ObjectMeta, func() any {
		if node := o.Spec.NodeName; node != "" && node != p.self {
			return nil
		}
		return source.Pod(&o)
	})
	if err == nil && p.policies {
		p.objects[len(p.objects)-1].pod = source.PolicyPod(&o)
	}
	return err
}

// policy decodes an object if it is a policy.
func (p *parser) policy(in part, head metav1.TypeMeta) (known bool, err error) {
	switch head.APIVersion + " " + head.Kind {
	case "networking.k8s.io/v1 NetworkPolicy":
		var o networkingv1.NetworkPolicy
		return true, p.add(in, &o, &o.ObjectMeta, func() any { return source.NetworkPolicy(&o) })
	case source.ClusterPolicyGroup().String() + " ClusterNetworkPolicy":
		var o source.ClusterPolicy
		return true, p.add(in, &o, &o.ObjectMeta, func() any { return source.ClusterNetworkPolicy(&o) })
	}
	return false, nil
}

func (p *parser) node(o *corev1.Node) *model.Node {
	if p.policies {
		return source.LabeledNode(o)
	}
	return source.Node(o)
}

// present turns a nil pointer into a nil interface.
func present[T any](value *T) any {
	if value == nil {
		return nil
	}
	return value
}

// part is a document, or one item of the List in it.
type part struct {
	doc  *document
	json []byte
	path []string // in the document
}

// head decodes the apiVersion and kind, which decide how to decode the rest.
func (p part) head() (metav1.TypeMeta, error) {
	var head metav1.TypeMeta
	if len(p.json) == 0 || p.json[0] != '{' {
		return head, p.errorf(nil, "it is not an object: write apiVersion, kind and metadata")
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(p.json, &head); err != nil {
		return head, p.decodeError(err)
	}
	if head.Kind == "" || head.APIVersion == "" {
		return head, p.errorf(nil, "apiVersion or kind is missing: write both")
	}
	return head, nil
}

// decode decodes into an object. Unknown and repeated fields are errors.
func (p part) decode(into any) error {
	strict, err := json.UnmarshalStrict(p.json, into)
	if err != nil {
		return p.decodeError(err)
	}
	if own, is := into.(interface{ Unread() []error }); is { // decodes itself, so that nothing is known of it here
		strict = append(strict, own.Unread()...)
	}
	if len(strict) == 0 {
		return nil
	}
	more := ""
	if n := len(strict) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more such errors)", n)
	}
	var path []string
	if field, ok := strict[0].(json.FieldError); ok {
		path = splitPath(field.FieldPath())
	}
	return p.errorf(path, "%v%s: correct or remove it", strict[0], more)
}

// decodeError names the field that has a value of the wrong type, and the type that it should have.
func (p part) decodeError(err error) error {
	var wrong *gojson.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return p.errorf(nil, "decode object: %v", err)
	}
	// If the offset comes from a type that decodes itself, it is meaningless and leads to another
	// field.
	path := pathAt(p.json, wrong.Offset)
	if !strings.HasPrefix(withoutIndexes(path), wrong.Field) {
		path = splitPath(wrong.Field)
	}
	hint := ""
	if wrong.Type.Kind() == reflect.String && wrong.Value != "array" && wrong.Value != "object" {
		hint = ", put it in quotes" // YAML does not read a name such as y or 123 as text
	}
	return p.errorf(path, "field %q is %s: it must be %s%s", joinPath(path), article(wrong.Value), typeName(wrong.Type), hint)
}

func withoutIndexes(path []string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(path), isIndex), ".")
}

func article(value string) string {
	if value == "array" || value == "object" {
		return "an " + value
	}
	return "a " + value
}

func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map, reflect.Pointer:
		return "an object"
	}
	return "a number (" + t.String() + ")"
}

// line returns the line on which the part begins.
func (p part) line() int {
	if len(p.path) == 0 {
		return p.doc.first()
	}
	index, _ := strconv.Atoi(p.path[1])
	return p.doc.itemLine(index)
}

// errorf returns an error on the line of the field at path.
func (p part) errorf(path []string, format string, args ...any) error {
	return &FileError{
		Line:    p.doc.lineOf(slices.Concat(p.path, path)),
		Message: fmt.Sprintf(format, args...),
	}
}
