package model

import (
	"net/netip"
	"slices"
	"testing"
)

// An address on a device of this node is the node's for as long as it is there, also if no Node
// lists it. The Services that name it become due when it comes and goes.
func TestAddressesOfDevicesAreTheNodes(t *testing.T) {
	s := NewStore("node")
	taker := service("taker", "10.96.0.1")
	taker.ExternalIPs = addrs("192.0.2.100")
	taken := service("taken", "10.96.0.2")
	taken.LoadBalancerIPs = addrs("192.0.2.100")
	s.SetService(taker)
	s.SetService(taken)
	s.TakeDirty()
	device := netip.MustParseAddr("192.0.2.100")
	refused := func(want bool) {
		t.Helper()
		external, loadBalancer := s.RefusedExternalIP(Name{"other", "taker"}, netip.MustParseAddr("192.0.2.101")), s.RefusedLoadBalancerIP(taken, device)
		if external.Why != "" || loadBalancer.Why != "" != want || loadBalancer.Node != "" {
			t.Errorf("another address is refused as %q, the device's as %q of %q", external.Why, loadBalancer.Why, loadBalancer.Node)
		}
		if why := s.RefusedExternalIP(taker.Name, device).Why; why != "" != want {
			t.Errorf("the externalIP is refused as %q, want refused %v", why, want)
		}
	}
	refused(false)
	s.SetLocal(slices.Values([]netip.Addr{device}))
	wantDirty(t, s, "a device got the address", serviceKey("taken"), serviceKey("taker"))
	refused(true)
	s.SetLocal(slices.Values([]netip.Addr{}))
	wantDirty(t, s, "the device lost it", serviceKey("taken"), serviceKey("taker"))
	refused(false)
	s.SetNode(&Node{Name: "node", Addrs: addrs("192.0.2.100")})
	if got := s.RefusedExternalIP(taker.Name, device); got.Node != "node" {
		t.Errorf("refused as %+v, want as an address that node lists", got)
	}
}

// Both who names a load balancer address and its owner learn of the other's coming and going.
func TestLoadBalancerAddressesAndExternalIPs(t *testing.T) {
	s := NewStore("node")
	owner := service("owner", "10.96.0.1")
	owner.LoadBalancerIPs = addrs("198.51.100.1")
	s.SetService(owner)
	taker := service("taker", "10.96.0.2")
	taker.Namespace = "evil"
	taker.ExternalIPs = addrs("198.51.100.1")
	s.SetService(taker)
	s.TakeDirty()
	addr := netip.MustParseAddr("198.51.100.1")
	if why := s.RefusedExternalIP(taker.Name, addr).Why; why != "a load balancer address of ns/owner" {
		t.Errorf("refused as %q", why)
	}
	if why := s.RefusedExternalIP(Name{"ns", "friend"}, addr).Why; why != "" {
		t.Errorf("in the owner's namespace it is refused as %q", why)
	}
	if who, ok := s.ExternalClaimant(owner.Name, addr); !ok || who != taker.Name {
		t.Errorf("%v wants it", who)
	}
	s.DeleteService(owner.Name)
	wantDirty(t, s, "the owner went", Key{KindService, taker.Name}, serviceKey("owner"))
	s.SetService(owner)
	s.TakeDirty()
	s.DeleteService(taker.Name)
	wantDirty(t, s, "the claimant went", Key{KindService, taker.Name}, serviceKey("owner"))
	other := service("other", "198.51.100.1")
	s.SetService(other)
	wantDirty(t, s, "it became a ClusterIP", serviceKey("other"), serviceKey("owner"))
	if why := s.RefusedLoadBalancerIP(owner, addr).Why; why != "another Service's ClusterIP" {
		t.Errorf("refused as %q", why)
	}
	own := service("own", "198.51.100.1")
	own.LoadBalancerIPs = addrs("198.51.100.1")
	if why := s.RefusedLoadBalancerIP(own, addr).Why; why != "" {
		t.Errorf("its own ClusterIP is refused as %q", why)
	}
}

// An address of an API server is not taken by externalIPs, wherever it is known from. The Services
// that name it become due when it comes and goes.
func TestServersAreNotTaken(t *testing.T) {
	s := NewStore("node")
	taker := service("taker", "10.96.0.1")
	taker.ExternalIPs = addrs("203.0.113.9", "203.0.113.10")
	s.SetService(taker)
	s.TakeDirty()
	given, listed := netip.MustParseAddrPort("203.0.113.9:6443"), netip.MustParseAddrPort("203.0.113.10:443")
	refused := func(at netip.AddrPort, want bool) {
		t.Helper()
		if why := s.RefusedExternalIP(taker.Name, at.Addr()).Why; why != "" != want {
			t.Errorf("%s is refused as %q, want refused %v", at, why, want)
		}
		if s.IsServer(at) != want || s.IsServer(netip.AddrPortFrom(at.Addr(), 22)) {
			t.Errorf("at %s is a server: %v, want %v, and none at port 22", at, s.IsServer(at), want)
		}
	}
	s.SetServers([]netip.AddrPort{given})
	wantDirty(t, s, "the agent uses a server", serviceKey("taker"))
	refused(given, true)
	refused(listed, false)
	slice := &Slice{Name: Name{"default", "kubernetes"}, Service: "kubernetes", Ports: []SlicePort{{Port: 443, Protocol: TCP}}, Endpoints: []Endpoint{{Addr: listed.Addr()}}}
	s.SetSlice(slice)
	wantDirty(t, s, "a server is listed", Key{KindService, Name{"default", "kubernetes"}}, serviceKey("taker"))
	refused(listed, true)
	s.DeleteSlice(slice.Name)
	wantDirty(t, s, "it is not listed any more", Key{KindService, Name{"default", "kubernetes"}}, serviceKey("taker"))
	refused(listed, false)
	refused(given, true)
}
