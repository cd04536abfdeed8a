package conntrack

import (
	"math/bits"
	"math/rand/v2"
	"net/netip"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Ports are the SNAT ports of a node. Each can be used once per destination. Shared says that flows
// of pods have the upper half, and all others the lower one; see bpf/lib/snat.h.
type Ports struct {
	First, Last uint16 // both zero: there are none
	Shared      bool
}

// Who uses the ports toward a destination.
const (
	OtherUsers = iota // all flows but those of pods to the outside
	PodUsers          // the pods together
	OnePod            // a single pod, which may use half of what pods may
	PortUsers
)

// PortUserNames name the indexes of Stats.Ports.
var PortUserNames = [PortUsers]string{OtherUsers: "others", PodUsers: "pods", OnePod: "one-pod"}

// PortUse is how many SNAT ports are in use toward one destination.
type PortUse struct {
	Used, Of    int
	Protocol    model.Protocol
	Destination netip.AddrPort
	Pod         netip.Addr // whose ports they are, of OnePod
}

// room returns how many ports each kind of user has toward one destination.
func (p Ports) room() (of [PortUsers]int) {
	if p.First == 0 {
		return of
	}
	n := int(p.Last) - int(p.First) + 1
	half := (n + 1) / 2
	if !p.Shared {
		half = n
	}
	return [PortUsers]int{OtherUsers: half, PodUsers: half, OnePod: (half + 1) / 2}
}

// portBuckets is a power of two. It decides how far counts may be too low; see portCounts.
const portBuckets = 1 << 14

// portCounts finds the destination toward which most ports are in use, in one walk over all flows
// and in little memory, however many destinations there are. Each falls into a bucket, and a bucket
// counts the one that has the majority of its rows. So the count is exact unless others are in the
// same bucket, and then too low by no more than there are rows of others: of a million flows, some
// sixty. The hash has a secret, so nobody can choose destinations that hide another.
type portCounts struct {
	buckets []portBucket
	most    int // the largest count
	key     maps.Flow
	pod     maps.FlowRow
}

type portBucket struct {
	of uint32 // part of the hash
	n  int32
}

// begin forgets the last walk.
func (c *portCounts) begin() {
	clear(c.buckets)
	c.most = 0
}

// add counts a row that holds a port.
func (c *portCounts) add(hash uint64, key *maps.Flow, row *maps.FlowRow) {
	if c.buckets == nil {
		c.buckets = make([]portBucket, portBuckets)
	}
	b, of := &c.buckets[hash%portBuckets], uint32(hash>>32)
	switch {
	case b.n == 0:
		b.of, b.n = of, 1
	case b.of != of:
		b.n--
		return
	default:
		b.n++
	}
	if int(b.n) > c.most {
		c.most, c.key, c.pod = int(b.n), *key, *row
	}
}

// portUse counts the SNAT ports in use.
type portUse struct {
	ports  Ports
	seed   [3]uint64
	counts [PortUsers]portCounts
}

func newPortUse(ports Ports) portUse {
	return portUse{ports: ports, seed: [3]uint64{rand.Uint64(), rand.Uint64(), rand.Uint64()}}
}

func (u *portUse) begin() {
	for i := range u.counts {
		u.counts[i].begin()
	}
}

// add counts the port of a reply, whose destination is an address and port of this node.
func (u *portUse) add(key *maps.Flow, row *maps.FlowRow) {
	kind := maps.FlowKindOf(row.Kind)
	// A reply to the client's own address, as from a backend on this node, needs no port.
	if key.Daddr == row.Daddr && kind != maps.FlowHost && kind != maps.FlowHostLocal {
		return
	}
	if port := maps.PortOf(key.Dport); u.ports.First == 0 || port < u.ports.First || port > u.ports.Last {
		return
	}
	hash := u.mix(u.mix(u.seed[0], key.Saddr, uint64(key.Sport)), key.Daddr, uint64(key.Proto))
	if kind != maps.FlowMasqueraded && kind != maps.FlowHost {
		u.counts[OtherUsers].add(hash, key, row)
		return
	}
	u.counts[PodUsers].add(hash, key, row)
	if kind == maps.FlowMasqueraded {
		u.counts[OnePod].add(u.mix(hash, row.Daddr, 0), key, row)
	}
}

// mix mixes an address and another word into a hash.
func (u *portUse) mix(hash uint64, addr maps.Addr, word uint64) uint64 {
	w := &addr.Word
	high, low := bits.Mul64(uint64(w[0])<<32^uint64(w[1])^hash^u.seed[1], uint64(w[2])<<32^uint64(w[3])^word*(u.seed[0]|1)^u.seed[2])
	return high ^ low
}

// fullest returns what is used most.
func (u *portUse) fullest() (use [PortUsers]PortUse) {
	for i, of := range u.ports.room() {
		c := &u.counts[i]
		use[i] = PortUse{Used: min(c.most, of), Of: of}
		if c.most == 0 {
			continue
		}
		use[i].Protocol, use[i].Destination = model.Protocol(c.key.Proto), maps.FlowSource(c.key)
		if i == OnePod {
			use[i].Pod = maps.NetipOf(c.pod.Daddr)
		}
	}
	return use
}

// share is the part of the ports that is in use where most are.
func (u *portUse) share() (most float64) {
	for _, use := range u.fullest() {
		most = max(most, share(use.Used, use.Of))
	}
	return most
}
