package reasons

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/test/rig"
)

func TestDenials(t *testing.T) {
	rig.Root(t)
	dir := rig.BPFFS(t)
	if list, err := ReadDenials(dir); err != nil || list != nil {
		t.Fatalf("without a map: %v, %v", list, err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "policy_denials", Type: ebpf.LRUHash, KeySize: 8, ValueSize: 8, MaxEntries: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Pin(filepath.Join(dir, "policy_denials")); err != nil {
		t.Fatal(err)
	}
	for key, packets := range map[bpf.MapsPolicyDenial]uint64{{Rule: 7, Direction: 1}: 2, {Rule: 9}: 40, {Rule: 7}: 2} {
		if err := m.Put(key, packets); err != nil {
			t.Fatal(err)
		}
	}
	list, err := ReadDenials(dir)
	want := []Denial{{Rule: 9, Direction: "ingress", Packets: 40}, {Rule: 7, Direction: "egress", Packets: 2}, {Rule: 7, Direction: "ingress", Packets: 2}}
	if diff := cmp.Diff(want, list); err != nil || diff != "" {
		t.Fatalf("%v %s", err, diff)
	}
	list[0].Policy = "networkpolicy shop/web, ingress: no rule accepts it"
	var out strings.Builder
	if err := WriteDenials(&out, list); err != nil {
		t.Fatal(err)
	}
	text := `
PACKETS  DIRECTION  DENIED BY
40       ingress    networkpolicy shop/web, ingress: no rule accepts it
2        egress     rule 7
2        ingress    rule 7
`
	if diff := cmp.Diff(text, out.String()); diff != "" {
		t.Error(diff)
	}
	out.Reset()
	if err := WriteDenials(&out, make([]Denial, maxDenials+5)); err != nil || !strings.HasSuffix(out.String(), "and 5 more rules, see -o json\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// Only what grew is listed, the fastest first. A count that became smaller began again.
func TestDenialRates(t *testing.T) {
	before := []Denial{{Rule: 7, Direction: "egress", Packets: 10}, {Rule: 7, Direction: "ingress", Packets: 10}, {Rule: 8, Direction: "egress", Packets: 90}, {Rule: 9, Direction: "egress", Packets: 1}}
	after := []Denial{
		{Rule: 7, Direction: "egress", Packets: 14, Policy: "x"}, {Rule: 7, Direction: "ingress", Packets: 10}, {Rule: 8, Direction: "egress", Packets: 6}, {Rule: 10, Direction: "ingress", Packets: 20},
	}
	have := DenialRates(before, after, 2*time.Second)
	want := []DenialRate{{after[3], 10}, {after[2], 3}, {after[0], 2}}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Error(diff)
	}
	var out strings.Builder
	if err := WriteDenialRates(&out, have); err != nil {
		t.Fatal(err)
	}
	text := `
PACKETS/S  PACKETS  DIRECTION  DENIED BY
10.0       20       ingress    rule 10
3.0        6        egress     rule 8
2.0        14       egress     x
`
	if diff := cmp.Diff(text, out.String()); diff != "" {
		t.Error(diff)
	}
}
