package lb

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

func TestParseDirect(t *testing.T) {
	for mode, name := range directNames {
		got, err := ParseDirect(name)
		if err != nil || got != Direct(mode) || got.String() != name {
			t.Errorf("ParseDirect(%q) = %v, %v", name, got, err)
		}
		if flags := maps.DirectFlags(uint8(got)); maps.DirectMode(flags|maps.SourceRanges) != uint8(got) || flags&^maps.DirectMask != 0 {
			t.Errorf("%s is %#x in flags", name, flags)
		}
	}
	for _, name := range []string{"", "on", "IPIP", "vxlan"} {
		if got, err := ParseDirect(name); err == nil {
			t.Errorf("ParseDirect(%q) = %v, want an error", name, got)
		}
	}
}

// A service has hosted rows for its backends on this node, and for no other.
func TestHosted(t *testing.T) {
	row := func(port uint16, flags uint8) maps.Backend {
		b := maps.BackendOf(model.IPv4.Unspecified().Next(), port, model.TCP)
		b.Flags = flags
		return b
	}
	vip := maps.KeyOf(netip.MustParseAddr("192.0.2.1"), 80, model.TCP)
	s := Service{Frontends: []Frontend{{vip, maps.LoadBalancer}}, Backends: []maps.Backend{row(80, maps.BackendLocal), row(81, 0), row(82, maps.BackendLocal)}}
	s.host(DirectIPIP)
	at := model.IPv4.Unspecified().Next()
	want := []Frontend{{vip, maps.LoadBalancer}}
	for _, key := range []maps.SvcKey{
		maps.FrontendAddrKey(vip.Addr), maps.HostedKey(netip.AddrPortFrom(at, 80), 0), maps.HostedAddrKey(at), maps.HostedKey(netip.AddrPortFrom(at, 82), 0),
	} {
		want = append(want, Frontend{key, maps.Hosted})
	}
	if diff := cmp.Diff(want, s.Frontends); diff != "" {
		t.Errorf("rows (-want +have):\n%s", diff)
	}
	if maps.DirectMode(s.Flags) != uint8(DirectIPIP) {
		t.Errorf("flags %#x", s.Flags)
	}
}

// Whatever the annotation says, the rules about source ranges and dsr-accept hold.
func TestDirectOfAnnotation(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	for _, tt := range []struct {
		name, annotation string
		facts            Direct
		accept           bool
		ranges           []netip.Prefix
		want             Direct
		problems         int
	}{
		{"the node's", "", DirectOpt, true, nil, DirectOpt, 0},
		{"its own", "geneve", DirectOpt, true, nil, DirectGeneve, 0},
		{"a mistake", "opts", DirectIPIP, true, nil, DirectIPIP, 1},
		{"ranges", "", DirectOpt, true, ranges, DirectOff, 1},
		{"ranges and its own", "opt", DirectGeneve, true, ranges, DirectOff, 1},
		{"ranges and a mistake", "opts", DirectOpt, true, ranges, DirectOff, 2},
		{"not accepted", "geneve", DirectOff, false, nil, DirectOff, 1},
		{"a mistake, not accepted", "opts", DirectGeneve, false, nil, DirectOff, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, w := NewCompiler(Facts{Direct: tt.facts, AcceptDirect: tt.accept}), &Wanted{}
			got := c.direct(&model.Service{Direct: tt.annotation, SourceRanges: tt.ranges}, w)
			if got != tt.want || len(w.Problems) != tt.problems {
				t.Errorf("%v with the problems %v, want %v with %d", got, w.Problems, tt.want, tt.problems)
			}
		})
	}
}
