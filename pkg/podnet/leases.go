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

// earlyPart is the fraction of the cool-down, one in earlyPart, that an address rests in any case.
// Other nodes know within seconds that a pod is gone, and a pod that cannot start for want of an
// address is worse than one that gets packets of an old client.
const earlyPart = 10

// leases holds which pod has which address, in files and the same in memory. It is not safe for
// concurrent use.
type leases struct {
	files    folder
	boot     string
	cooldown time.Duration
	reserved func(netip.Addr) bool
	others   func() map[netip.Addr]model.Name               // addresses of pods, whichever plugin gave them
	occupied func(netip.Addr, netip.Prefix) (string, error) // what else uses an address of a pool; "" for nothing

	// given holds the addresses in use besides those in all, as of the current request.
	given    map[netip.Addr]model.Name
	all      map[netip.Addr]*Lease
	byDevice map[string][]*Lease // those in use
	cooling  []netip.Addr        // by time of return; some may be in use again
	pools    []*pool
}

// setPools sets the node's CIDRs. Addresses outside of them stay with their owners until released.
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

// families reports for which of IPv4 and IPv6 the node has a CIDR.
func (s *leases) families() (v4, v6 bool) {
	for _, p := range s.pools {
		v4, v6 = v4 || p.prefix.Addr().Is4(), v6 || p.prefix.Addr().Is6()
	}
	return v4, v6
}

// isTaken reports whether an address must not be given out: it is in use or cooling, or it belongs
// to the node or to another plugin.
func (s *leases) isTaken(addr netip.Addr) bool {
	_, given := s.given[addr]
	return given || s.all[addr] != nil || s.reserved(addr)
}

// allocate returns the owner's addresses, one of each family: those it has, those it asked for, or
// free ones.
func (s *leases) allocate(owner cni.Attachment, pod cni.Pod, asked []netip.Addr, withoutV6 bool) ([]*Lease, error) {
	s.sweep()
	s.given = s.others()
	have := slices.Clone(s.byDevice[owner.Device()])
	if len(have) > 0 && have[0].Owner != owner {
		return nil, cni.Refusal(cni.ErrMismatch, "device %s already belongs to container %.64q",
			owner.Device(), have[0].Owner.Container)
	}
	had := len(have)
	have, err := s.complete(have, owner, pod, asked, withoutV6)
	if err != nil {
		for _, lease := range have[had:] { // nobody has seen these
			err = errors.Join(err, s.forget(lease.Address))
		}
		return nil, err
	}
	return have, nil
}

// complete adds to the owner's leases what is missing. It returns them also with an error.
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
			return have, cni.Refusal(cni.ErrNoAddress,
				"cannot give the pod the requested address %s: it gets one address of each family, out of %s", addr, s.cidrs())
		}
	}
	return have, nil
}

// lease leases one address of one family to the owner.
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
			// A file has appeared since the agent started, so the address is not ours to give.
		}
		s.given[addr] = model.Name{}
	}
}

// leaseAsked leases the address that was asked for. It need not have rested: a caller that names an
// address knows its past.
func (s *leases) leaseAsked(owner cni.Attachment, pod cni.Pod, addr netip.Addr) (*Lease, error) {
	if !slices.ContainsFunc(s.pools, func(p *pool) bool { return p.has(addr) }) || s.reserved(addr) {
		return nil, cni.Refusal(cni.ErrNoAddress,
			"cannot give the pod the requested address %s: it is not a pod address of %s", addr, s.cidrs())
	}
	was := s.all[addr]
	if who, given := s.given[addr]; given && was == nil && who != (model.Name{Namespace: pod.Namespace, Name: pod.Name}) {
		return nil, cni.Refusal(cni.ErrNoAddress,
			"cannot give the pod the requested address %s: pod %s has it from another network", addr, who)
	}
	if by, err := s.occupied(addr, s.poolOf(addr).prefix); err != nil {
		return nil, err
	} else if by != "" && (was == nil || was.Released != 0) {
		return nil, cni.Refusal(cni.ErrNoAddress,
			"cannot give the pod the requested address %s: it is in use: %s", addr, by)
	}
	if was != nil && was.Released == 0 {
		return nil, cni.Refusal(cni.ErrNoAddress,
			"cannot give the pod the requested address %s: it belongs to %s of container %.64q", addr, was.Pod, was.Owner.Container)
	} else if was != nil {
		if err := s.forget(addr); err != nil {
			return nil, err
		}
	}
	return s.take(addr, owner, pod)
}

// free returns an address to give out. If no pool has one, it is the one that has cooled longest,
// provided that was long enough.
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

// take leases an address to the owner, in the file first.
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

// add notes a lease whose file exists.
func (s *leases) add(lease *Lease) {
	s.all[lease.Address] = lease
	if lease.Released == 0 {
		s.byDevice[lease.Device] = append(s.byDevice[lease.Device], lease)
	} else {
		s.cooling = append(s.cooling, lease.Address)
	}
}

// release starts the cool-down of a device's addresses.
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

// renew gives released addresses back to their owner if nobody got them since. An agent that starts
// while the plugin is at work finds addresses without a device, and has to release them.
func (s *leases) renew(owner cni.Attachment, addrs []netip.Addr) error {
	for _, addr := range addrs {
		lease := s.all[addr]
		if lease == nil || lease.Owner != owner {
			return fmt.Errorf("address %s no longer belongs to this pod", addr)
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

// forget frees an address.
func (s *leases) forget(addr netip.Addr) error {
	if err := s.files.remove(addr.String()); err != nil {
		return err
	}
	if lease := s.all[addr]; lease != nil {
		s.drop(lease)
	}
	return nil
}

// sweep frees the addresses whose cool-down is over. cooling is in order of return, so it stops at
// the first that has to wait.
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

// exhausted returns the error for a family without free addresses, with what to do about it.
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
	return cni.Refusal(cni.ErrNoAddress, "no %s address is free for a pod in %s: "+
		"%d are in use, %d belong to others and %d rest until %s after their pod is gone; "+
		"give the node a larger podCIDR or fewer pods, and look for leftovers with \"fairlead ipam list\"", family, s.cidrs(), used, others, cooling,
		s.cooldown)
}
