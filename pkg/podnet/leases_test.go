package podnet

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"pgregory.net/rapid"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/model"
)

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func newLeases(dir string, cooldown time.Duration, cidrs ...string) *leases {
	s := &leases{
		files: folder{dir}, boot: "one", cooldown: cooldown, reserved: func(netip.Addr) bool { return false },
		others:   func() map[netip.Addr]model.Name { return map[netip.Addr]model.Name{} },
		occupied: func(netip.Addr, netip.Prefix) (string, error) { return "", nil },
		all:      map[netip.Addr]*Lease{}, byDevice: map[string][]*Lease{},
	}
	s.setPools(prefixes(cidrs...))
	return s
}

func owner(i int) cni.Attachment {
	return cni.Attachment{Network: "pods", Container: fmt.Sprintf("c%d", i), IfName: "eth0"}
}

// A pool gives out every pod address of its network once, and no other address.
func TestPool(t *testing.T) {
	for _, tt := range []struct {
		cidr  string
		first string
		last  string
		size  int
	}{
		{"10.1.0.0/24", "10.1.0.1", "10.1.0.254", 254}, {"10.1.0.0/30", "10.1.0.1", "10.1.0.2", 2}, {"10.1.0.0/31", "10.1.0.0", "10.1.0.1", 2},
		{"10.1.0.7/32", "10.1.0.7", "10.1.0.7", 1}, {"10.1.0.99/24", "10.1.0.1", "10.1.0.254", 254}, {"255.255.255.0/24", "255.255.255.1", "255.255.255.254", 254},
		{"fd00::/120", "fd00::1", "fd00::ff", 255}, {"fd00::/127", "fd00::", "fd00::1", 2}, {"fd00::5/128", "fd00::5", "fd00::5", 1},
		{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00/120", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff01", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 255},
	} {
		t.Run(tt.cidr, func(t *testing.T) {
			p := newPool(netip.MustParsePrefix(tt.cidr))
			var got []netip.Addr
			for {
				addr, ok := p.take(func(addr netip.Addr) bool { return slices.Contains(got, addr) })
				if !ok {
					break
				}
				if !p.has(addr) {
					t.Fatalf("%s was given out but is not for pods", addr)
				}
				got = append(got, addr)
			}
			if len(got) != tt.size || p.size() != float64(tt.size) || got[0].String() != tt.first || got[len(got)-1].String() != tt.last {
				t.Errorf("%d addresses (size returns %v), %s to %s; want %d, %s to %s", len(got),
					p.size(), got[0], got[len(got)-1], tt.size, tt.first, tt.last)
			}
		})
	}
}

// Through any sequence of requests and restarts, no address has two owners or is another plugin's,
// none is reused early while others are free, no request fails while some are, and memory and files
// agree.
func TestLeases(t *testing.T) {
	if err := flag.Set("rapid.checks", "30"); err != nil { // every step writes files
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		cidrs := []string{"10.1.0.0/29", "10.2.0.0/31", "fd00::/126"}
		foreign := map[netip.Addr]bool{} // addresses of another plugin, by whether the cluster knows them
		start := func() *leases {
			s := newLeases(dir, time.Hour, cidrs...)
			s.others = func() map[netip.Addr]model.Name {
				known := map[netip.Addr]model.Name{}
				for addr, isKnown := range foreign {
					if isKnown {
						known[addr] = model.Name{Namespace: "ns", Name: "foreign"}
					}
				}
				return known
			}
			s.occupied = func(addr netip.Addr, _ netip.Prefix) (string, error) {
				if _, ok := foreign[addr]; ok {
					return "somebody", nil
				}
				return "", nil
			}
			return s
		}
		s := start()
		free := func(is4 bool) (n int) {
			for _, p := range s.pools {
				for addr := first(p.prefix); p.has(addr); addr = addr.Next() {
					if _, others := foreign[addr]; !others && addr.Is4() == is4 && s.all[addr] == nil {
						n++
					}
				}
			}
			return n
		}
		have := map[int][]netip.Addr{}
		rested := map[netip.Addr]bool{} // released at least once
		rt.Repeat(map[string]func(*rapid.T){
			"add": func(rt *rapid.T) {
				i := rapid.IntRange(0, 9).Draw(rt, "owner")
				got, err := s.allocate(owner(i), cni.Pod{}, nil, false)
				var refusal *types.Error
				if errors.As(err, &refusal) && refusal.Code == cni.ErrNoAddress {
					if have[i] != nil {
						rt.Fatalf("an owner of addresses was refused: %v", err)
					}
					if v4, v6 := free(true), free(false); v4 > 0 && v6 > 0 {
						rt.Fatalf("refused with %d IPv4 and %d IPv6 addresses free: %v", v4, v6, err)
					}
					return
				}
				if err != nil {
					rt.Fatal(err)
				}
				var addrs []netip.Addr
				for _, lease := range got {
					addrs = append(addrs, lease.Address)
					if _, others := foreign[lease.Address]; others && have[i] == nil {
						rt.Fatalf("%s belongs to another plugin", lease.Address)
					}
					if have[i] == nil && rested[lease.Address] {
						rt.Fatalf("%s was given out again without a rest", lease.Address)
					}
				}
				slices.SortFunc(addrs, netip.Addr.Compare)
				if have[i] != nil && !slices.Equal(have[i], addrs) {
					rt.Fatalf("owner %d had %v and got %v", i, have[i], addrs)
				}
				have[i] = addrs
			},
			"release": func(rt *rapid.T) {
				i := rapid.IntRange(0, 9).Draw(rt, "owner")
				if err := s.release(owner(i).Device()); err != nil {
					rt.Fatal(err)
				}
				for _, addr := range have[i] {
					rested[addr] = true
				}
				delete(have, i)
			},
			"another plugin gives out": func(rt *rapid.T) {
				p := rapid.SampledFrom(s.pools).Draw(rt, "pool")
				addr := first(p.prefix)
				for range rapid.IntRange(0, int(p.size())-1).Draw(rt, "address") {
					addr = addr.Next()
				}
				if s.all[addr] == nil {
					foreign[addr] = rapid.Bool().Draw(rt, "known")
				}
			},
			"another plugin takes back": func(*rapid.T) { clear(foreign) },
			"restart": func(*rapid.T) {
				n := &Network{cfg: Config{Boot: "one", Log: quiet()}, records: map[string]*Record{}, files: folder{t.TempDir()}}
				n.leases = start()
				if err := n.load(); err != nil {
					rt.Fatal(err)
				}
				s = n.leases
			},
			"": func(rt *rapid.T) {
				owned := map[netip.Addr]int{}
				for i, addrs := range have {
					if len(addrs) != 2 || !addrs[0].Is4() || !addrs[1].Is6() {
						rt.Fatalf("owner %d has %v", i, addrs)
					}
					for _, addr := range addrs {
						if other, ok := owned[addr]; ok {
							rt.Fatalf("owners %d and %d both have %s", i, other, addr)
						}
						owned[addr] = i
						if lease := s.all[addr]; lease == nil || lease.Owner != owner(i) || lease.State() != Used {
							rt.Fatalf("lease of %s, which owner %d has, is %+v", addr, i, lease)
						}
					}
				}
				names, err := s.files.names(false)
				if err != nil {
					rt.Fatal(err)
				}
				if len(names) != len(s.all) || len(s.all) != len(owned)+len(rested) {
					rt.Fatalf("%d files, %d leases, %d owned, %d resting", len(names), len(s.all),
						len(owned), len(rested))
				}
			},
		})
	})
}

// An address rests for the cool-down, or for a tenth of it if no other is free. Addresses become
// free in the order of their return.
func TestCooldown(t *testing.T) {
	s := newLeases(t.TempDir(), time.Hour, "10.1.0.0/30")
	for i := range 2 {
		if _, err := s.allocate(owner(i), cni.Pod{}, nil, false); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		if err := s.release(owner(i).Device()); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.allocate(owner(2), cni.Pod{}, nil, false)
	if err == nil || !strings.Contains(err.Error(), "0 are in use, 0 belong to others and 2 rest") {
		t.Fatalf("at once: %v", err)
	}
	back := func(addr string, by time.Duration) {
		s.all[netip.MustParseAddr(addr)].Released -= by
	}
	back("10.1.0.1", s.cooldown/earlyPart+time.Second)
	got, err := s.allocate(owner(2), cni.Pod{}, nil, false)
	if err != nil || got[0].Address.String() != "10.1.0.1" {
		t.Fatalf("after a tenth: %v, %v", got, err)
	}
	if _, err := s.allocate(owner(3), cni.Pod{}, nil, false); err == nil {
		t.Fatal("an address that has not rested was given out")
	}
	back("10.1.0.2", s.cooldown)
	s.sweep()
	if len(s.all) != 1 {
		t.Errorf("leases after the cool-down: %v, want one", s.all)
	}
	got, err = s.allocate(owner(3), cni.Pod{}, nil, false)
	if err != nil || got[0].Address.String() != "10.1.0.2" {
		t.Fatalf("after the cool-down: %v, %v", got, err)
	}
}

// A pod whose agent was replaced while the plugin was at work keeps its addresses, unless they have
// a new owner by then.
func TestRenew(t *testing.T) {
	s := newLeases(t.TempDir(), time.Hour, "10.1.0.0/24")
	got, err := s.allocate(owner(0), cni.Pod{}, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	addrs := []netip.Addr{got[0].Address}
	if err := s.release(owner(0).Device()); err != nil {
		t.Fatal(err)
	}
	if err := s.renew(owner(1), addrs); err == nil {
		t.Error("another owner renewed a resting address")
	}
	if err := s.renew(owner(0), addrs); err != nil || s.all[addrs[0]].State() != Used || len(s.byDevice[owner(0).Device()]) != 1 {
		t.Errorf("renew: %v, %+v", err, s.all[addrs[0]])
	}
	if err := s.renew(owner(0), []netip.Addr{netip.MustParseAddr("10.1.0.77")}); err == nil {
		t.Error("an address that was never given out was renewed")
	}
}

// A failed allocation leaves nothing behind: an address of one family is of no use without the
// other.
func TestAllOrNothing(t *testing.T) {
	s := newLeases(t.TempDir(), time.Hour, "10.1.0.0/24", "fd00::1/128")
	if _, err := s.allocate(owner(0), cni.Pod{}, nil, false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.allocate(owner(1), cni.Pod{}, nil, false); err == nil {
		t.Fatal("allocated a second IPv6 address out of one")
	}
	names, err := s.files.names(false)
	if err != nil || len(names) != 2 || len(s.all) != 2 {
		t.Errorf("after a failure: %q, %v, %v", names, s.all, err)
	}
}

// An address that already has a file, whoever wrote it, is given to nobody, and the file stays as
// it is.
func TestSomebodysFile(t *testing.T) {
	dir := t.TempDir()
	s := newLeases(dir, time.Hour, "10.1.0.0/24")
	if err := os.WriteFile(filepath.Join(dir, "10.1.0.1"), []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := s.allocate(owner(0), cni.Pod{}, nil, false)
	if err != nil || got[0].Address.String() != "10.1.0.2" {
		t.Errorf("allocated %v, %v", got, err)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "10.1.0.1")); err != nil || string(content) != "theirs" {
		t.Errorf("the file is %q, %v", content, err)
	}
	names, err := s.files.names(false)
	if err != nil || !slices.Equal(names, []string{"10.1.0.1", "10.1.0.2"}) {
		t.Errorf("files %q, %v", names, err)
	}
}

// A request for an address does not get one of another pod, but does get one that the cluster still
// lists for the same pod.
func TestAskedForAnother(t *testing.T) {
	s := newLeases(t.TempDir(), time.Hour, "10.1.0.0/24")
	theirs, answering := netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("10.1.0.8")
	s.others = func() map[netip.Addr]model.Name {
		return map[netip.Addr]model.Name{theirs: {Namespace: "shop", Name: "old"}}
	}
	s.occupied = func(addr netip.Addr, _ netip.Prefix) (string, error) {
		if addr == answering {
			return "it answers", nil
		}
		return "", nil
	}
	for _, tt := range []struct {
		pod   string
		addr  netip.Addr
		wrong string
	}{
		{"new", theirs, "pod shop/old has it"}, {"new", answering, "it answers"}, {"old", theirs, ""},
	} {
		_, err := s.allocate(owner(0), cni.Pod{Namespace: "shop", Name: tt.pod}, []netip.Addr{tt.addr}, false)
		if tt.wrong == "" && err != nil || tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)) {
			t.Errorf("%s for pod %s: %v", tt.addr, tt.pod, err)
		}
	}
}

// Allocating the many thousandth address costs as much as the first.
func BenchmarkAllocate(b *testing.B) {
	s := newLeases(b.TempDir(), time.Hour, "10.0.0.0/8")
	for i := 0; b.Loop(); i++ {
		if _, err := s.allocate(owner(i), cni.Pod{}, nil, false); err != nil {
			b.Fatal(err)
		}
	}
}

// Whatever a file contains, reading it neither panics nor yields a device that is not a pod's.
func FuzzRecords(f *testing.F) {
	f.Add("10.1.0.1", []byte(`{"address":"10.1.0.1","device":"fl0123456789ab","boot":"one","since":"2026-01-01T00:00:00Z"}`))
	f.Add("fl0123456789ab", []byte(`{"owner":{"network":"pods","container":"c","ifname":"eth0"},"device":{"index":3,"name":"x"}}`))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		dir := t.TempDir()
		if name == "" || filepath.Base(name) != name || os.WriteFile(filepath.Join(dir, name), content, 0o600) != nil {
			return
		}
		var lease Lease
		if (folder{dir}).read(name, &lease) == nil && lease.validate(name) == nil && !cni.IsDevice(lease.Device) {
			t.Errorf("lease of the device %q", lease.Device)
		}
		var record Record
		if (folder{dir}).read(name, &record) == nil && record.validate(name) == nil && !record.Device.Chained && !cni.IsDevice(record.Device.Name) {
			t.Errorf("record of the device %q", record.Device.Name)
		}
	})
}
