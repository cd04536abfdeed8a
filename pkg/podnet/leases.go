package podnet

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/model"
)

// earlyPart of the cool-down is what an address rests in any case. Other nodes know within seconds that a pod is gone; a
// pod that does not start for want of an address is worse than one that gets the packets of a client of long ago.
const earlyPart = 10

// leases is who has which address: in files, and the same in memory. It is for one goroutine at a time.
type leases struct {
	files    folder
	boot     string
	cooldown time.Duration
	reserved func(netip.Addr) bool
	others   func() map[netip.Addr]model.Name               // pods' addresses, whoever gave them
	occupied func(netip.Addr, netip.Prefix) (string, error) // who else answers for an address of a pool; empty for nobody

	// given is what is somebody's beside what is noted here, as of the request that is answered.
	given    map[netip.Addr]model.Name
	all      map[netip.Addr]*Lease
	byDevice map[string][]*Lease // those in use
	cooling  []netip.Addr        // in the order in which they came back; some may be in use again
	pools    []*pool
}

// setPools takes over the CIDRs of the node. Addresses outside of them stay their owners' until they come back.
func (s *leases) setPools(prefixes []netip.Prefix) {
	kept := make([]*pool, 0, len(prefixes))
	for _, prefix := range prefixes {
		at := slices.IndexFunc(s.pools, func(p *pool) bool { return p.prefix == prefix.Masked() })
		if at >= 0 {
			kept = append(kept, s.pools[at])
			continue
		}
		kept = append(kept, newPool(prefix))
	}
	s.pools = kept
}

// families returns which of IPv4 and IPv6 the node has addresses of.
func (s *leases) families() (v4, v6 bool) {
	for _, p := range s.pools {
		v4, v6 = v4 || p.prefix.Addr().Is4(), v6 || p.prefix.Addr().Is6()
	}
	return v4, v6
}

// isTaken reports whether an address is not to be given out: it is in use, it rests, or it is the node's own or another plugin's.
func (s *leases) isTaken(addr netip.Addr) bool {
	_, given := s.given[addr]
	return given || s.all[addr] != nil || s.reserved(addr)
}

// allocate returns the owner's addresses, one of each family: those that it has, those that were asked for, or free ones.
func (s *leases) allocate(owner cni.Attachment, pod cni.Pod, asked []netip.Addr, withoutV6 bool) ([]*Lease, error) {
	s.sweep()
	s.given = s.others()
	have := slices.Clone(s.byDevice[owner.Device()])
	if len(have) > 0 && have[0].Owner != owner {
		return nil, cni.Refusal(cni.ErrNotAsTold, "device %s belongs to container %.64q already", owner.Device(), have[0].Owner.Container)
	}
	had := len(have)
	have, err := s.complete(have, owner, pod, asked, withoutV6)
	if err != nil {
		for _, lease := range have[had:] { // nobody has seen them
			err = errors.Join(err, s.forget(lease.Address))
		}
		return nil, err
	}
	return have, nil
}

// complete adds to what the owner has. It returns that also with an error.
func (s *leases) complete(have []*Lease, owner cni.Attachment, pod cni.Pod, asked []netip.Addr, withoutV6 bool) ([]*Lease, error) {
	v4, v6 := s.families()
	for _, family := range []struct{ wanted, is4 bool }{{v4, true}, {v6 && !withoutV6, false}} {
		of := func(addr netip.Addr) bool { return addr.Is4() == family.is4 }
		if !family.wanted || slices.ContainsFunc(have, func(l *Lease) bool { return of(l.Address) }) {
			continue
		}
		lease, err := s.lease(owner, pod, asked, of)
		if err != nil {
			return have, err
		}
		have = append(have, lease)
	}
	if len(have) == 0 {
		return nil, cni.Refusal(cni.ErrNoAddress, "the pod has IPv6 turned off, and this node has no IPv4 addresses for pods")
	}
	for _, addr := range asked {
		if !slices.ContainsFunc(have, func(l *Lease) bool { return l.Address == addr }) {
			return have, cni.Refusal(cni.ErrNoAddress, "address %s was asked for, and cannot be had: the pod gets one of each family out of %s", addr, s.cidrs())
		}
	}
	return have, nil
}

// lease gives the owner an address of one family.
func (s *leases) lease(owner cni.Attachment, pod cni.Pod, asked []netip.Addr, of func(netip.Addr) bool) (*Lease, error) {
	for _, addr := range asked {
		if of(addr) {
			return s.leaseAsked(owner, pod, addr)
		}
	}
	for {
		addr, ok := s.free(of)
		if !ok {
			return nil, s.exhausted(of)
		}
		by, err := s.occupied(addr, s.poolOf(addr).prefix)
		if err != nil {
			return nil, err
		}
		if by == "" {
			lease, err := s.take(addr, owner, pod)
			if !errors.Is(err, fs.ErrExist) {
				return lease, err
			}
			// Somebody's file is there that was not when this agent started; the address is not ours to give.
		}
		s.given[addr] = model.Name{}
	}
}

// leaseAsked gives out the one address that was asked for. It need not have rested: who asks for it knows it.
func (s *leases) leaseAsked(owner cni.Attachment, pod cni.Pod, addr netip.Addr) (*Lease, error) {
	if !slices.ContainsFunc(s.pools, func(p *pool) bool { return p.has(addr) }) || s.reserved(addr) {
		return nil, cni.Refusal(cni.ErrNoAddress, "address %s was asked for, and is not one for pods of %s", addr, s.cidrs())
	}
	was := s.all[addr]
	if who, given := s.given[addr]; given && was == nil && who != (model.Name{Namespace: pod.Namespace, Name: pod.Name}) {
		return nil, cni.Refusal(cni.ErrNoAddress, "address %s was asked for, and pod %s has it by another network", addr, who)
	}
	if by, err := s.occupied(addr, s.poolOf(addr).prefix); err != nil {
		return nil, err
	} else if by != "" && (was == nil || was.Released != 0) {
		return nil, cni.Refusal(cni.ErrNoAddress, "address %s was asked for, and is in use: %s", addr, by)
	}
	if was != nil && was.Released == 0 {
		return nil, cni.Refusal(cni.ErrNoAddress, "address %s was asked for, and belongs to %s of container %.64q", addr, was.Pod, was.Owner.Container)
	} else if was != nil {
		if err := s.forget(addr); err != nil {
			return nil, err
		}
	}
	return s.take(addr, owner, pod)
}

// free returns an address to give out. Where none is free the one that has rested longest is, if it has at all.
func (s *leases) free(of func(netip.Addr) bool) (netip.Addr, bool) {
	for _, p := range s.pools {
		if !of(p.prefix.Addr()) {
			continue
		}
		if addr, ok := p.take(s.isTaken); ok {
			return addr, true
		}
	}
	for i, addr := range s.cooling {
		lease := s.all[addr]
		if !of(addr) || lease == nil || lease.Released == 0 || s.poolOf(addr) == nil {
			continue
		}
		if uptime()-lease.Released < s.cooldown/earlyPart {
			break
		}
		if s.forget(addr) != nil {
			continue
		}
		s.cooling = slices.Delete(s.cooling, i, i+1)
		return addr, true
	}
	return netip.Addr{}, false
}

func (s *leases) poolOf(addr netip.Addr) *pool {
	for _, p := range s.pools {
		if p.has(addr) {
			return p
		}
	}
	return nil
}

// take makes an address the owner's, in the file first.
func (s *leases) take(addr netip.Addr, owner cni.Attachment, pod cni.Pod) (*Lease, error) {
	lease := &Lease{
		Address: addr, Owner: owner, Pod: pod, Device: owner.Device(), Boot: s.boot, Since: time.Now().UTC().Truncate(time.Second), At: uptime(),
	}
	if err := s.files.create(addr.String(), lease); err != nil {
		return nil, err
	}
	s.add(lease)
	return lease, nil
}

// add notes a lease that has a file.
func (s *leases) add(lease *Lease) {
	s.all[lease.Address] = lease
	if lease.Released == 0 {
		s.byDevice[lease.Device] = append(s.byDevice[lease.Device], lease)
	} else {
		s.cooling = append(s.cooling, lease.Address)
	}
}

// release lets the addresses of a device rest.
func (s *leases) release(device string) error {
	var errs []error
	for _, lease := range slices.Clone(s.byDevice[device]) {
		back := *lease
		back.Released = uptime()
		if err := s.files.replace(lease.Address.String(), &back); err != nil {
			errs = append(errs, err)
			continue
		}
		s.drop(lease)
		s.add(&back)
	}
	return errors.Join(errs...)
}

// renew makes addresses the owner's again that it had and that nobody got since. An agent that started while the plugin
// was at work cannot know better than to take them back.
func (s *leases) renew(owner cni.Attachment, addrs []netip.Addr) error {
	for _, addr := range addrs {
		lease := s.all[addr]
		if lease == nil || lease.Owner != owner {
			return fmt.Errorf("address %s is not this pod's", addr)
		}
		if lease.Released == 0 {
			continue
		}
		again := *lease
		again.Released = 0
		if err := s.files.replace(addr.String(), &again); err != nil {
			return err
		}
		s.drop(lease)
		s.add(&again)
	}
	return nil
}

// drop forgets a lease, but not its file.
func (s *leases) drop(lease *Lease) {
	delete(s.all, lease.Address)
	left := slices.DeleteFunc(s.byDevice[lease.Device], func(l *Lease) bool { return l == lease })
	if len(left) == 0 {
		delete(s.byDevice, lease.Device)
		return
	}
	s.byDevice[lease.Device] = left
}

// forget makes an address free.
func (s *leases) forget(addr netip.Addr) error {
	if err := s.files.remove(addr.String()); err != nil {
		return err
	}
	if lease := s.all[addr]; lease != nil {
		s.drop(lease)
	}
	return nil
}

// sweep makes addresses free that have rested. They are in the order in which they came back, so it ends at the first that
// has not.
func (s *leases) sweep() {
	now := uptime()
	for len(s.cooling) > 0 {
		addr := s.cooling[0]
		if lease := s.all[addr]; lease != nil && lease.Released != 0 {
			if now-lease.Released < s.cooldown || s.forget(addr) != nil {
				return
			}
			if p := s.poolOf(addr); p != nil {
				p.back = append(p.back, addr)
			}
		}
		s.cooling = s.cooling[1:]
	}
}

// cidrs lists where addresses come from.
func (s *leases) cidrs() string {
	var list []string
	for _, p := range s.pools {
		list = append(list, p.prefix.String())
	}
	return strings.Join(list, ", ")
}

// exhausted says why there is no address, and what to do.
func (s *leases) exhausted(of func(netip.Addr) bool) error {
	var used, cooling int
	for addr, lease := range s.all {
		switch {
		case !of(addr):
		case lease.Released == 0:
			used++
		default:
			cooling++
		}
	}
	others := 0
	for addr := range s.given {
		if of(addr) && s.all[addr] == nil && s.poolOf(addr) != nil {
			others++
		}
	}
	family := familyOf(netip.IPv6Unspecified())
	if of(netip.IPv4Unspecified()) {
		family = familyOf(netip.IPv4Unspecified())
	}
	return cni.Refusal(cni.ErrNoAddress, "no %s address is free for a pod in %s: %d are used, %d are others' and %d rest until %s after their pod is gone; "+
		"give the node a larger podCIDR or fewer pods, and look for leftovers with \"fairlead ipam list\"", family, s.cidrs(), used, others, cooling,
		s.cooldown)
}
