package policy

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// Compiler holds the objects and the tables that they compile to. It is not safe for concurrent
// use.
type Compiler struct {
	objects
	quota Quota

	numbering   numbering
	atoms       *atoms
	scopes      map[string]*scope
	byAtom      map[uint32][]*scope // that atoms matter to
	labels      map[string]struct{} // that selectors of namespaces ask for
	compilation uint32
	tables      *Tables
	nodeOf      map[netip.Addr]vector
	alike       map[alike]uint32 // while all peers are compiled
	generation  uint32           // the last that was given
	due         bool             // policies and what they select here have to be compiled
	peersDue    bool             // and so have all peers
	classes     int              // after the last time that all was compiled
	moved       map[netip.Addr]struct{}
	// previous are classes of addresses that no pod has any longer. What was accepted with them is
	// judged again only when another pod has the address, since until then there is no traffic: pods
	// that go away cost the others nothing.
	previous map[netip.Addr]uint32
	renewed  map[model.Name]struct{} // pods that get new generations
}

// numbering gives out the numbers in the tables.
type numbering struct {
	atoms, classes, scopes, subjects, decisions, rules *numbers
	reduced                                            map[string]*numbers // by namespace
}

// list returns all numbers.
func (n *numbering) list() []*numbers {
	return slices.AppendSeq([]*numbers{n.atoms, n.classes, n.scopes, n.subjects, n.decisions, n.rules}, maps.Values(n.reduced))
}

// New returns a Compiler for the node of that name. Generations begin after the given one, which has
// to be at least the highest that an earlier Compiler gave if verdicts were cached since.
func New(self string, quota Quota, generation uint32) *Compiler {
	return &Compiler{
		objects: newObjects(self), quota: quota, generation: generation,
		numbering: numbering{
			atoms: newNumbers(), classes: newNumbers(), scopes: newNumbers(), subjects: newNumbers(), decisions: newNumbers(), rules: numbersFrom(FirstRule),
			reduced: map[string]*numbers{},
		},
		tables: NewTables(), due: true, peersDue: true, moved: map[netip.Addr]struct{}{}, previous: map[netip.Addr]uint32{}, renewed: map[model.Name]struct{}{},
	}
}

// SetPolicy stores a new or changed policy.
func (c *Compiler) SetPolicy(policy *model.NetworkPolicy) {
	if reflect.DeepEqual(c.policies[policy.Name], policy) {
		return
	}
	c.policies[policy.Name], c.revisions[policy.Name] = policy, revision(policy)
	c.due = true
}

// revision returns a hash of what a policy says.
func revision(policy *model.NetworkPolicy) string {
	said := *policy
	said.UID, said.Problems = "", nil
	text, err := json.Marshal(&said)
	if err != nil {
		panic(err) // it consists of texts and numbers
	}
	sum := sha256.Sum256(text)
	return string(sum[:16])
}

// DeletePolicy forgets a policy.
func (c *Compiler) DeletePolicy(name model.Name) {
	if c.policies[name] != nil {
		delete(c.policies, name)
		delete(c.revisions, name)
		c.due = true
	}
}

// SetNamespace stores the labels of a namespace.
func (c *Compiler) SetNamespace(name string, labels map[string]string) {
	before, known := c.namespaces[name]
	c.namespaces[name] = maps.Clone(labels)
	if c.namespaces[name] == nil {
		c.namespaces[name] = map[string]string{}
	}
	matters := !known && len(c.labels) > 0
	for label := range c.labels {
		was, had := before[label]
		is, has := labels[label]
		matters = matters || had != has || was != is
	}
	c.all(matters)
}

// all has everything compiled if something changed that matters.
func (c *Compiler) all(matters bool) { c.due, c.peersDue = c.due || matters, c.peersDue || matters }

// DeleteNamespace forgets a namespace.
func (c *Compiler) DeleteNamespace(name string) {
	if _, known := c.namespaces[name]; known {
		delete(c.namespaces, name)
		c.all(len(c.labels) > 0)
	}
}

// SetNode stores a new or changed node.
func (c *Compiler) SetNode(node *model.PolicyNode) {
	if before := c.nodes[node.Name]; !reflect.DeepEqual(before, node) {
		c.nodes[node.Name] = node
		c.all(node.Name == c.self || c.atoms == nil || len(c.atoms.nodes) > 0)
	}
}

// DeleteNode forgets a node.
func (c *Compiler) DeleteNode(name string) {
	if c.nodes[name] != nil {
		delete(c.nodes, name)
		c.all(true)
	}
}

// SetPod stores a new or changed pod of the cluster, as a peer. One without addresses is forgotten.
func (c *Compiler) SetPod(pod *model.PolicyPod) { c.move(c.pods.set(pod)) }

// DeletePod forgets a pod of the cluster.
func (c *Compiler) DeletePod(name model.Name) { c.move(c.pods.delete(name)) }

func (c *Compiler) move(addrs []netip.Addr) {
	for _, addr := range addrs {
		c.moved[addr] = struct{}{}
	}
}

// SetLocal stores a new or changed pod of this node, as a subject. Its addresses are those that the
// node gave it.
func (c *Compiler) SetLocal(pod *model.PolicyPod) {
	if !reflect.DeepEqual(c.local[pod.Name], pod) {
		c.local[pod.Name] = pod
		c.due = true
	}
}

// DeleteLocal forgets a pod of this node.
func (c *Compiler) DeleteLocal(name model.Name) {
	if c.local[name] != nil {
		delete(c.local, name)
		c.due = true
	}
}

// StartAt makes generations begin after the given one, if they are not beyond it already.
func (c *Compiler) StartAt(generation uint32) { c.generation = max(c.generation, generation) }

// Renew gives pods of this node new generations by the next Update, because something was accepted to them that is
// in no tables.
func (c *Compiler) Renew(pods map[model.Name]struct{}) { maps.Copy(c.renewed, pods) }

// Generation returns the last generation that a pod got.
func (c *Compiler) Generation() uint32 { return c.generation }

// ReplacePods makes the pods of the cluster exactly the given ones.
func (c *Compiler) ReplacePods(pods []*model.PolicyPod) {
	keep := make(map[[12]byte]struct{}, len(pods))
	for _, pod := range pods {
		keep[identity(pod.Name)] = struct{}{}
		c.SetPod(pod)
	}
	c.move(c.pods.keep(keep))
}

// Tables returns the tables as of the last Update. The caller must not modify them.
func (c *Compiler) Tables() *Tables { return c.tables }

// Due reports whether the next Update compiles everything, and not only what pods of other nodes change.
func (c *Compiler) Due() bool { return c.due }

// Update brings the tables up to date, and returns what changed in them. A pod of another node
// changes few rows; all else is rare, and compiles everything.
func (c *Compiler) Update() *Change {
	for _, numbers := range c.numbering.list() {
		numbers.release()
	}
	change := c.update()
	c.renew(change)
	return change
}

func (c *Compiler) update() *Change {
	change := newChange()
	c.all(len(c.previous) > maxPrevious || len(c.tables.classes) > 2*c.classes+minClasses)
	if !c.due {
		c.reclassMoved(change)
	}
	if c.due { // also because a namespace has come over its quota by that
		before := c.tables
		kept := c.compile(len(before.Problems) == 0)
		if kept && len(before.Problems) == 0 && c.exceeds() {
			kept = c.compile(false)
		}
		c.setPods(before, kept)
		clear(c.previous)
		c.due, c.peersDue = false, false
		change.add(difference(before, c.tables, kept))
		if kept {
			if c.reclassMoved(change); c.due {
				change.add(c.update())
			}
			return change
		}
		c.classes = len(c.tables.classes)
	}
	c.moved = map[netip.Addr]struct{}{}
	return change
}

func (c *Compiler) reclassMoved(change *Change) {
	for addr := range c.moved {
		c.reclass(addr, change)
	}
	c.moved = map[netip.Addr]struct{}{} // one that once was large takes long to clear
}

const (
	// maxPrevious bounds the memory that earlier owners of addresses take.
	maxPrevious = 1 << 16
	// minClasses is how many classes may come before those are removed that no address has any longer,
	// if there are not many.
	minClasses = 1024
)
