package addresses

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// assignment maps each Service to its addresses.
type assignment map[types.UID][]netip.Addr

// errNoAddress is wrapped by the errors about Services that get fewer addresses than they have
// families.
var errNoAddress = errors.New("no address is left")

// isOurs reports whether the controller gives a Service addresses. A Service that names a class
// asks another controller for them.
func isOurs(service *corev1.Service) bool {
	return service.Spec.Type == corev1.ServiceTypeLoadBalancer && service.Spec.LoadBalancerClass == nil &&
		service.DeletionTimestamp == nil
}

// assign gives each of our Services one address per family. A Service keeps the address it has:
// first as recorded in held, then as its status says, which is all that is known after a restart.
// If two Services claim the same address, the older one keeps it.
func assign(pools []netip.Prefix, services []*corev1.Service, held assignment) (assignment, error) {
	services = slices.DeleteFunc(slices.Clone(services), func(s *corev1.Service) bool { return !isOurs(s) })
	slices.SortFunc(services, byAge)
	taken := map[netip.Addr]types.UID{}
	for _, had := range []func(*corev1.Service) []netip.Addr{
		func(s *corev1.Service) []netip.Addr { return held[s.UID] },
		statusAddrs,
	} {
		for _, s := range services {
			for _, addr := range had(s) {
				if _, ok := taken[addr]; !ok && !has(taken, s.UID, addr) && fits(pools, s, addr) {
					taken[addr] = s.UID
				}
			}
		}
	}
	given := assignment{}
	var problems []error
	for _, s := range services {
		for _, family := range s.Spec.IPFamilies {
			addr, err := pick(pools, taken, s.UID, family)
			if err != nil {
				problems = append(problems, fmt.Errorf("service %s/%s: %s: %w", s.Namespace, s.Name, family, err))
				continue
			}
			taken[addr] = s.UID
			given[s.UID] = append(given[s.UID], addr)
		}
	}
	return given, errors.Join(problems...)
}

// byAge orders Services by creation time.
func byAge(a, b *corev1.Service) int {
	if order := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); order != 0 {
		return order
	}
	return strings.Compare(string(a.UID), string(b.UID))
}

// has reports whether a Service already has an address of the family of addr.
func has(taken map[netip.Addr]types.UID, uid types.UID, addr netip.Addr) bool {
	for other, owner := range taken {
		if owner == uid && other.Is4() == addr.Is4() {
			return true
		}
	}
	return false
}

// fits reports whether addr is in a pool and belongs to a family of the Service.
func fits(pools []netip.Prefix, service *corev1.Service, addr netip.Addr) bool {
	return slices.Contains(service.Spec.IPFamilies, familyOf(addr)) &&
		slices.ContainsFunc(pools, func(pool netip.Prefix) bool { return usable(pool, addr) })
}

// usable reports whether an address of the pool can be given out. The first address cannot, nor can
// the last one of IPv4.
func usable(pool netip.Prefix, addr netip.Addr) bool {
	return pool.Contains(addr) && addr != pool.Masked().Addr() && (addr.Is6() || pool.Contains(addr.Next()))
}

// pick returns the address of the family that the Service already has, or else the first free one.
func pick(pools []netip.Prefix, taken map[netip.Addr]types.UID, uid types.UID, family corev1.IPFamily) (netip.Addr, error) {
	for addr, owner := range taken {
		if owner == uid && familyOf(addr) == family {
			return addr, nil
		}
	}
	for _, pool := range pools {
		if familyOf(pool.Addr()) != family {
			continue
		}
		for addr := pool.Masked().Addr().Next(); usable(pool, addr); addr = addr.Next() {
			if _, ok := taken[addr]; !ok {
				return addr, nil
			}
		}
	}
	return netip.Addr{}, errNoAddress
}

func familyOf(addr netip.Addr) corev1.IPFamily {
	if addr.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// statusAddrs returns the addresses in the status of a Service.
func statusAddrs(service *corev1.Service) []netip.Addr {
	var addrs []netip.Addr
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if addr, err := netip.ParseAddr(ingress.IP); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
