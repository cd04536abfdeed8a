package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// pods keeps all pods of the cluster, most of which no policy ever names, so a pod takes few bytes:
// what many pods have in common is kept once, in a shape.
type pods struct {
	rows   []podRow // the first is not used
	free   uint32   // first unused row; others follow by next[0]
	count  int
	heads  [3][]uint32 // hash tables of rows: by name, IPv4 and IPv6 address
	seed   maphash.Seed
	shapes map[string]*shape
}

// podRow is a pod. Its name is kept as a hash, which is long enough that nobody finds another name
// for that of a pod.
type podRow struct {
	name    [12]byte
	v6      [16]byte
	v4      [4]byte
	created uint32 // seconds since 1970
	next    [3]uint32
	shape   *shape
}

// shape is what selectors see of pods: their namespace, labels and named ports.
type shape struct {
	key      string
	pods     uint32
	compiled uint32  // the compilation that elements is of
	elements *vector // what the policies in use see of the shape; nil for nothing
}

func newPods() *pods {
	p := &pods{rows: make([]podRow, 1), seed: maphash.MakeSeed(), shapes: map[string]*shape{}}
	for i := range p.heads {
		p.heads[i] = make([]uint32, 16)
	}
	return p
}

// identity is the same on every node and after every restart, as far as it orders pods.
func identity(name model.Name) [12]byte {
	sum := sha256.Sum256([]byte(name.Namespace + "/" + name.Name))
	return [12]byte(sum[:12])
}

// part returns what an index is over, or nil if the row is not in it.
func (r *podRow) part(index int) []byte {
	switch {
	case index == 0:
		return r.name[:]
	case index == 1 && r.v4 != [4]byte{}:
		return r.v4[:]
	case index == 2 && r.v6 != [16]byte{}:
		return r.v6[:]
	}
	return nil
}

// head returns where the rows with that part begin. The seed keeps those who choose names from
// choosing which share a chain.
func (p *pods) head(index int, part []byte) *uint32 {
	h := maphash.Bytes(p.seed, part)
	return &p.heads[index][h&uint64(len(p.heads[index])-1)]
}

func (p *pods) link(at uint32) {
	row := &p.rows[at]
	for i := range p.heads {
		if part := row.part(i); part != nil {
			head := p.head(i, part)
			row.next[i], *head = *head, at
		}
	}
}

func (p *pods) unlink(at uint32) {
	row := &p.rows[at]
	for i := range p.heads {
		part := row.part(i)
		if part == nil {
			continue
		}
		link := p.head(i, part)
		for *link != at {
			link = &p.rows[*link].next[i]
		}
		*link = row.next[i]
	}
}

// find returns the row of a name, or 0.
func (p *pods) find(name [12]byte) uint32 {
	at := *p.head(0, name[:])
	for at != 0 && p.rows[at].name != name {
		at = p.rows[at].next[0]
	}
	return at
}

// owner returns the shape of the pod that has an address, or nil. If two say so, which happens
// while one of them ends, it is the younger one's.
func (p *pods) owner(addr netip.Addr) *shape {
	index, part := 1, addr.AsSlice()
	if addr.Is6() {
		index = 2
	}
	var best *podRow
	for at := *p.head(index, part); at != 0; at = p.rows[at].next[index] {
		row := &p.rows[at]
		if !slices.Equal(row.part(index), part) {
			continue
		}
		if best == nil || row.created > best.created || row.created == best.created && string(row.name[:]) > string(best.name[:]) {
			best = row
		}
	}
	if best == nil {
		return nil
	}
	return best.shape
}

// set stores a pod, and returns the addresses whose owner may have changed.
func (p *pods) set(pod *model.PolicyPod) []netip.Addr {
	row := podRow{name: identity(pod.Name), created: uint32(max(0, pod.Created))}
	if !pod.HostNetwork {
		for _, addr := range pod.Addrs {
			if addr = addr.Unmap(); addr.Is4() {
				row.v4 = addr.As4()
			} else if addr.Is6() {
				row.v6 = addr.As16()
			}
		}
	}
	if row.v4 == [4]byte{} && row.v6 == [16]byte{} {
		return p.delete(pod.Name)
	}
	key := shapeKey(pod)
	at := p.find(row.name)
	if at != 0 {
		was := &p.rows[at]
		if was.v4 == row.v4 && was.v6 == row.v6 && was.created == row.created && was.shape.key == key {
			return nil
		}
	}
	row.shape = p.hold(key)
	changed := row.addrs(nil)
	if at != 0 {
		changed = p.rows[at].addrs(changed)
		p.unlink(at)
		p.release(p.rows[at].shape)
	} else {
		at = p.take()
	}
	p.rows[at] = row
	p.link(at)
	return changed
}

// delete forgets a pod, and returns the addresses whose owner may have changed.
func (p *pods) delete(name model.Name) []netip.Addr {
	at := p.find(identity(name))
	if at == 0 {
		return nil
	}
	return p.remove(at)
}

func (p *pods) remove(at uint32) []netip.Addr {
	changed := p.rows[at].addrs(nil)
	p.unlink(at)
	p.release(p.rows[at].shape)
	p.rows[at] = podRow{next: [3]uint32{p.free}}
	p.free = at
	p.count--
	return changed
}

// keep forgets all other pods, and returns the addresses whose owner may have changed.
func (p *pods) keep(names map[[12]byte]struct{}) (changed []netip.Addr) {
	for at := range p.rows {
		row := &p.rows[at]
		if _, kept := names[row.name]; !kept && row.shape != nil {
			changed = append(changed, p.remove(uint32(at))...)
		}
	}
	return changed
}

// take returns an unused row.
func (p *pods) take() uint32 {
	p.count++
	if at := p.free; at != 0 {
		p.free = p.rows[at].next[0]
		return at
	}
	if len(p.rows) == cap(p.rows) {
		// As much as append adds would leave up to a fifth of the rows unused.
		p.rows = slices.Grow(p.rows, max(16, len(p.rows)/16))
	}
	p.rows = append(p.rows, podRow{})
	if len(p.rows) > 2*len(p.heads[0]) {
		p.rehash()
	}
	return uint32(len(p.rows) - 1)
}

func (p *pods) rehash() {
	for i := range p.heads {
		p.heads[i] = make([]uint32, 2*len(p.heads[i]))
	}
	for at := range p.rows[1:] {
		if p.rows[at+1].shape != nil {
			p.link(uint32(at + 1))
		}
	}
}

func (p *pods) hold(key string) *shape {
	s := p.shapes[key]
	if s == nil {
		s = &shape{key: key}
		p.shapes[key] = s
	}
	s.pods++
	return s
}

func (p *pods) release(s *shape) {
	if s.pods--; s.pods == 0 {
		delete(p.shapes, s.key)
	}
}

func (r *podRow) addrs(list []netip.Addr) []netip.Addr {
	if r.v4 != [4]byte{} {
		list = append(list, netip.AddrFrom4(r.v4))
	}
	if r.v6 != [16]byte{} {
		list = append(list, netip.AddrFrom16(r.v6))
	}
	return list
}

// shapeKey writes what selectors see of a pod, so that no two different shapes read the same.
func shapeKey(pod *model.PolicyPod) string {
	key := appendText(nil, pod.Namespace)
	key = binary.AppendUvarint(key, uint64(len(pod.Labels)))
	for _, label := range slices.Sorted(maps.Keys(pod.Labels)) {
		key = appendText(appendText(key, label), pod.Labels[label])
	}
	for _, port := range pod.Ports {
		key = append(appendText(key, port.Name), byte(port.Protocol), byte(port.Port>>8), byte(port.Port))
	}
	return string(key)
}

func appendText(to []byte, text string) []byte {
	return append(binary.AppendUvarint(to, uint64(len(text))), text...)
}

// namespace returns a part of the key.
func (s *shape) namespace() string {
	n, size := binary.Uvarint([]byte(s.key[:min(len(s.key), binary.MaxVarintLen64)]))
	return s.key[size:][:n]
}

// read returns what else the key says.
func (s *shape) read() (labels map[string]string, ports []model.NamedPort) {
	rest := []byte(s.key)
	text := func() string {
		n, size := binary.Uvarint(rest)
		out := string(rest[size : size+int(n)])
		rest = rest[size+int(n):]
		return out
	}
	text() // the namespace
	count, size := binary.Uvarint(rest)
	rest = rest[size:]
	labels = make(map[string]string, count)
	for range count {
		label := text()
		labels[label] = text()
	}
	for len(rest) > 0 {
		port := model.NamedPort{Name: text()}
		port.Protocol, port.Port = model.Protocol(rest[0]), binary.BigEndian.Uint16(rest[1:])
		rest = rest[3:]
		ports = append(ports, port)
	}
	return labels, ports
}
