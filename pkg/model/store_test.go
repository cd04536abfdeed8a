package model

import (
	"net/netip"
	"slices"
	"testing"
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func service(name string, ips ...string) *Service {
	return &Service{Name: Name{"ns", name}, ClusterIPs: addrs(ips...)}
}

func slice(name, service string) *Slice {
	return &Slice{Name: Name{"ns", name}, Service: service, Family: IPv4, Weight: 1}
}

func serviceKey(name string) Key { return Key{KindService, Name{"ns", name}} }

func wantDirty(t *testing.T, s *Store, why string, want ...Key) {
	t.Helper()
	if got := s.TakeDirty(); !slices.Equal(got, want) {
		t.Errorf("%s: dirty is %v, want %v", why, got, want)
	}
}

func TestSlicesFindTheirService(t *testing.T) {
	s := NewStore("node")
	s.SetSlice(slice("b", "web"))
	s.SetSlice(slice("a", "web"))
	wantDirty(t, s, "slices before the service", serviceKey("web"))
	s.SetService(service("web", "10.96.0.1"))
	got, list := s.Service(Name{"ns", "web"})
	if got == nil || len(list) != 2 || list[0].Name.Name != "a" {
		t.Fatalf("got %v with slices %v", got, list)
	}
	wantDirty(t, s, "the service comes", serviceKey("web"))

	s.SetSlice(slice("a", "web"))
	s.SetService(service("web", "10.96.0.1"))
	wantDirty(t, s, "nothing changed")

	s.SetSlice(slice("a", "api"))
	wantDirty(t, s, "a slice changed its service", serviceKey("api"), serviceKey("web"))
	if _, list := s.Service(Name{"ns", "web"}); len(list) != 1 {
		t.Errorf("the slice also stayed with its old service: %v", list)
	}
	s.DeleteService(Name{"ns", "web"})
	s.DeleteSlice(Name{"ns", "b"})
	s.DeleteSlice(Name{"ns", "b"})
	wantDirty(t, s, "deletes", serviceKey("web"))
	s.SetService(service("web", "10.96.0.2"))
	if got, list := s.Service(Name{"ns", "web"}); got == nil || len(list) != 0 {
		t.Errorf("recreated: %v with slices %v", got, list)
	}
}

func TestReadersKeepTheListTheyWereGiven(t *testing.T) {
	s := NewStore("node")
	for _, name := range []string{"a", "c"} {
		s.SetSlice(slice(name, "web"))
	}
	_, before := s.Service(Name{"ns", "web"})
	kept := slices.Clone(before)
	s.SetSlice(slice("b", "web"))
	changed := slice("c", "web")
	changed.Weight = 7
	s.SetSlice(changed)
	s.DeleteSlice(Name{"ns", "a"})
	if !slices.Equal(before, kept) {
		t.Error("a list that a reader holds was changed")
	}
}

func TestReplaceDeletesWhatIsNotThere(t *testing.T) {
	s := NewStore("node")
	s.SetService(service("old", "10.96.0.1"))
	s.SetSlice(slice("old-1", "old"))
	s.SetPod(&Pod{Name: Name{"ns", "pod"}})
	s.TakeDirty()
	s.ReplaceServices([]*Service{service("new", "10.96.0.2")})
	s.ReplaceSlices([]*Slice{slice("new-1", "new")})
	s.ReplacePods(nil)
	wantDirty(t, s, "replaced", serviceKey("new"), serviceKey("old"), Key{KindPod, Name{"ns", "pod"}})
	if got := s.Keys(); !slices.Equal(got, []Key{serviceKey("new")}) {
		t.Errorf("keys are %v", got)
	}
}

func TestSyncedNeedsEveryKind(t *testing.T) {
	s := NewStore("node")
	steps := []func(){
		func() { s.ReplaceServices(nil) },
		func() { s.ReplaceSlices(nil) },
		func() { s.ReplaceNodes(nil) },
		func() { s.ReplaceNamespaces(nil) },
		func() { s.ReplacePods(nil) },
	}
	for i, step := range steps {
		select {
		case <-s.Synced():
			t.Fatalf("synced after %d of %d kinds; missing %v", i, len(steps), s.Unsynced())
		default:
		}
		if got := len(s.Unsynced()); got != len(steps)-i {
			t.Errorf("%d kinds are missing, want %d", got, len(steps)-i)
		}
		step()
		step()
	}
	<-s.Synced()
}

func TestReservedAddresses(t *testing.T) {
	s := NewStore("node")
	s.SetService(service("web", "10.96.0.1"))
	s.SetNode(&Node{Name: "node", Addrs: addrs("192.0.2.1"), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}})
	for addr, reserved := range map[string]bool{
		"10.96.0.1": true, "192.0.2.1": true, "10.1.0.77": true, "127.0.0.5": true, "::1": true, "169.254.169.254": true,
		"fe80::1": true, "224.0.0.1": true, "0.0.0.0": true, "::": true,
		"203.0.113.1": false, "10.96.0.2": false, "10.2.0.1": false, "2001:db8::1": false,
	} {
		if why := s.RefusedExternalIP(Name{"ns", "other"}, netip.MustParseAddr(addr)).Why; (why != "") != reserved {
			t.Errorf("%s: refused as %q, want refused %v", addr, why, reserved)
		}
	}
}

// Whether a Service may use an externalIP depends on other objects: a change of those makes the
// Service due.
func TestExternalIPsAreDueWhenTheirAddressIsTaken(t *testing.T) {
	s := NewStore("node")
	taker := service("taker", "10.96.0.1")
	taker.ExternalIPs = addrs("10.96.0.9", "192.0.2.9")
	s.SetService(taker)
	s.TakeDirty()
	s.SetService(service("owner", "10.96.0.9"))
	wantDirty(t, s, "the address became a ClusterIP", serviceKey("owner"), serviceKey("taker"))
	s.DeleteService(Name{"ns", "owner"})
	wantDirty(t, s, "it is free again", serviceKey("owner"), serviceKey("taker"))
	s.SetNode(&Node{Name: "other", Addrs: addrs("192.0.2.9")})
	wantDirty(t, s, "it became a node's", serviceKey("taker"))
	s.SetNode(&Node{Name: "other", Addrs: addrs("192.0.2.9"), Leaving: true})
	wantDirty(t, s, "nothing that matters changed")
	s.DeleteNode("other")
	wantDirty(t, s, "the node went", serviceKey("taker"))
}

func TestZoneOfThisNodeConcernsEverything(t *testing.T) {
	s := NewStore("node")
	s.SetService(service("web", "10.96.0.1"))
	s.TakeDirty()
	s.SetNode(&Node{Name: "other", Zone: "a"})
	wantDirty(t, s, "another node's zone")
	s.SetNode(&Node{Name: "node", Zone: "a"})
	wantDirty(t, s, "this node's zone", serviceKey("web"))
	if got := s.Self().Zone; got != "a" {
		t.Errorf("zone is %q", got)
	}
}

func TestOthers(t *testing.T) {
	s := NewStore("self")
	wantSignal := func(why string, want bool) {
		t.Helper()
		select {
		case <-s.NodesChanged():
			if !want {
				t.Errorf("%s: told", why)
			}
		default:
			if want {
				t.Errorf("%s: not told", why)
			}
		}
	}
	b := &Node{Name: "b", Addrs: addrs("192.0.2.2")}
	s.ReplaceNodes([]*Node{b, {Name: "self", Addrs: addrs("192.0.2.1")}, {Name: "a", Addrs: addrs("192.0.2.3")}})
	wantSignal("nodes come", true)
	if list := s.Others(); len(list) != 2 || list[0].Name != "a" || list[1] != b {
		t.Errorf("others are %v", list)
	}
	s.SetNode(&Node{Name: "b", Zone: "z", Addrs: b.Addrs})
	wantSignal("another zone", false)
	s.DeleteNode("b")
	wantSignal("a node goes", true)
	if list := s.Others(); len(list) != 1 || list[0].Name != "a" {
		t.Errorf("others are %v", list)
	}
}
