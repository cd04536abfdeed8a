package policy

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// vector is what policies see of an address: which atoms it is in, sorted. An element is the number
// of an atom, and for a named port the key of the port that it stands for.
type vector []uint64

const portBits = 24

func element(atom, key uint32) uint64 { return uint64(atom)<<portBits | uint64(key) }

func atomOf(element uint64) uint32 { return uint32(element >> portBits) }

func (v vector) text() string {
	out := make([]byte, 0, 8*len(v))
	for _, e := range v {
		out = binary.BigEndian.AppendUint64(out, e)
	}
	return string(out)
}

// atoms are the selectors, blocks and named ports by which policies in use tell addresses apart.
// Equal ones of several policies are one.
type atoms struct {
	numbers *numbers
	pods    map[string]map[uint32]model.Selector // by namespace
	broad   map[string]*broad                    // by the text of their selector of namespaces
	nodes   map[uint32]model.Selector
	blocks  map[uint32]*model.Block
	ports   map[model.NamedPort]uint32
	near    map[string]map[uint32]model.Selector // what may select pods of a namespace; a cache
}

// broad are the selectors of pods that share a selector of namespaces.
type broad struct {
	namespaces model.Selector
	pods       map[uint32]model.Selector
}

func newAtoms(numbers *numbers) *atoms {
	return &atoms{
		numbers: numbers,
		pods:    map[string]map[uint32]model.Selector{}, broad: map[string]*broad{}, nodes: map[uint32]model.Selector{},
		blocks: map[uint32]*model.Block{}, ports: map[model.NamedPort]uint32{}, near: map[string]map[uint32]model.Selector{},
	}
}

func selectorText(s model.Selector) string {
	var out []byte
	for i := range s {
		out = append(appendText(out, s[i].Label), byte(s[i].Operator))
		out = binary.AppendUvarint(out, uint64(len(s[i].Values)))
		for _, value := range s[i].Values {
			out = appendText(out, value)
		}
	}
	return string(out)
}

func terms(s model.Selector) int {
	n := 0
	for i := range s {
		n += 1 + len(s[i].Values)
	}
	return n
}

// add returns the number of a peer's atom.
func (a *atoms) add(peer *model.PolicyPeer) uint32 {
	switch {
	case peer.Pods != nil && peer.Pods.Namespace != "":
		at, _ := a.numbers.of(fmt.Sprintf("in %s %s", peer.Pods.Namespace, selectorText(peer.Pods.Pods)))
		if a.pods[peer.Pods.Namespace] == nil {
			a.pods[peer.Pods.Namespace] = map[uint32]model.Selector{}
		}
		a.pods[peer.Pods.Namespace][at] = peer.Pods.Pods
		return at
	case peer.Pods != nil:
		text := selectorText(peer.Pods.Namespaces)
		at, _ := a.numbers.of(fmt.Sprintf("all %d %s%s", len(text), text, selectorText(peer.Pods.Pods)))
		if a.broad[text] == nil {
			a.broad[text] = &broad{peer.Pods.Namespaces, map[uint32]model.Selector{}}
		}
		a.broad[text].pods[at] = peer.Pods.Pods
		return at
	case peer.Nodes != nil:
		at, _ := a.numbers.of("nodes " + selectorText(*peer.Nodes))
		a.nodes[at] = *peer.Nodes
		return at
	}
	at, _ := a.numbers.of(fmt.Sprintf("block %s %s", peer.Block.Prefix, peer.Block.Except))
	a.blocks[at] = peer.Block
	return at
}

func (a *atoms) addPort(port model.NamedPort) uint32 {
	at, _ := a.numbers.of(fmt.Sprintf("port %d %s", port.Protocol, port.Name))
	a.ports[port] = at
	return at
}

// nearby returns the atoms that select pods of a namespace if their labels fit.
func (a *atoms) nearby(name string, namespace map[string]string, known bool) map[uint32]model.Selector {
	if list, found := a.near[name]; found {
		return list
	}
	list := maps.Clone(a.pods[name])
	if list == nil {
		list = map[uint32]model.Selector{}
	}
	if known {
		for _, b := range a.broad {
			if b.namespaces.Selects(namespace) {
				maps.Copy(list, b.pods)
			}
		}
	}
	a.near[name] = list
	return list
}

// ofShape returns what policies see of pods of a shape, wherever they are.
func (a *atoms) ofShape(s *shape, namespace map[string]string, known bool) vector {
	near := a.nearby(s.namespace(), namespace, known)
	if len(near) == 0 && len(a.ports) == 0 {
		return nil
	}
	labels, ports := s.read()
	var out vector
	for at, selector := range near {
		if selector.Selects(labels) {
			out = append(out, element(at, 0))
		}
	}
	for _, port := range ports {
		for _, protocol := range []model.Protocol{port.Protocol, model.AnyProtocol} {
			if at, used := a.ports[model.NamedPort{Name: port.Name, Protocol: protocol}]; used {
				out = append(out, element(at, keyOf(port.Protocol, port.Port)))
			}
		}
	}
	slices.Sort(out)
	return slices.Clip(slices.Compact(out))
}

// ofNode returns what policies see of a node besides its addresses.
func (a *atoms) ofNode(labels map[string]string) vector {
	var out vector
	for at, selector := range a.nodes {
		if selector.Selects(labels) {
			out = append(out, element(at, 0))
		}
	}
	slices.Sort(out)
	return out
}

// regions returns for each prefix that some block mentions the blocks of the addresses in it that
// are in no longer one of these prefixes.
func (a *atoms) regions() map[netip.Prefix]vector {
	begins, ends := map[netip.Prefix][]uint64{}, map[netip.Prefix][]uint64{}
	for at, block := range a.blocks {
		begins[block.Prefix] = append(begins[block.Prefix], element(at, 0))
		for _, except := range block.Except {
			ends[except] = append(ends[except], element(at, 0))
		}
	}
	prefixes := slices.Collect(maps.Keys(begins))
	for prefix := range ends {
		if begins[prefix] == nil {
			prefixes = append(prefixes, prefix)
		}
	}
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	out := make(map[netip.Prefix]vector, len(prefixes))
	var around []netip.Prefix // those that the current one is in, the largest first
	for _, prefix := range prefixes {
		for len(around) > 0 && !around[len(around)-1].Contains(prefix.Addr()) {
			around = around[:len(around)-1]
		}
		var inside vector
		if len(around) > 0 {
			inside = slices.Clone(out[around[len(around)-1]])
		}
		inside = append(inside, begins[prefix]...)
		if leave := ends[prefix]; len(leave) > 0 {
			slices.Sort(leave)
			inside = slices.DeleteFunc(inside, func(e uint64) bool { _, found := slices.BinarySearch(leave, e); return found })
		}
		slices.Sort(inside)
		out[prefix] = slices.Clip(inside)
		around = append(around, prefix)
	}
	return out
}
