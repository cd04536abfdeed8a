package maps

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/rig"
)

func TestRanges(t *testing.T) {
	rig.Root(t)
	m, err := Create(Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	table := NewRangeTable(m.SrcRanges)
	var all []Range
	for _, prefix := range []string{"0.0.0.0/0", "10.0.0.0/8", "10.1.2.3/32", "::/0", "::/90", "2001:db8::/32", "fd00::1/128"} {
		all = append(all, Range{7, netip.MustParsePrefix(prefix)})
	}
	for i := range 5000 { // more than a batch
		all = append(all, Range{8, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), 32)})
	}
	for range 2 { // existing rows are no error
		if err := table.Insert(all); err != nil {
			t.Fatal(err)
		}
	}
	list := func() (list []Range) {
		if err := table.Each(func(r Range) { list = append(list, r) }); err != nil {
			t.Fatal(err)
		}
		return list
	}
	order := func(a, b Range) int {
		if a.Service != b.Service {
			return int(a.Service) - int(b.Service)
		}
		return a.Prefix.Compare(b.Prefix)
	}
	equal := cmp.Comparer(func(a, b Range) bool { return a == b })
	if diff := cmp.Diff(slices.SortedFunc(slices.Values(all), order), slices.SortedFunc(slices.Values(list()), order), equal); diff != "" {
		t.Errorf("ranges (-want +have):\n%s", diff)
	}
	for _, c := range []struct {
		service uint32
		prefix  string
		want    bool
	}{{7, "10.0.0.0/8", true}, {7, "10.0.0.0/9", false}, {7, "::/0", true}, {7, "::/1", false}, {8, "10.0.0.0/8", false}} {
		if has, err := table.Has(Range{c.service, netip.MustParsePrefix(c.prefix)}); has != c.want || err != nil {
			t.Errorf("service %d has %s: %v, %v", c.service, c.prefix, has, err)
		}
	}
	for _, c := range []struct {
		service        uint32
		client, prefix string
	}{
		{7, "10.1.2.3", "10.1.2.3/32"}, {7, "10.1.2.4", "10.0.0.0/8"}, {7, "11.1.1.1", "0.0.0.0/0"}, {7, "2001:db8:5::1", "2001:db8::/32"},
		{7, "2002::", "::/0"}, {8, "172.16.0.7", "172.16.0.7/32"}, {8, "10.1.2.3", ""}, {8, "fd00::1", ""}, {9, "10.1.2.3", ""},
	} {
		got, ok, err := table.Allows(c.service, netip.MustParseAddr(c.client))
		if ok != (c.prefix != "") || ok && got.String() != c.prefix || err != nil {
			t.Errorf("service %d allows %s by %s, %v, %v, want %q", c.service, c.client, got, ok, err, c.prefix)
		}
	}
	for range 2 { // missing rows are no error
		if err := table.Delete(all); err != nil {
			t.Fatal(err)
		}
	}
	if left := list(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
