package queues

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

func TestLeaves(t *testing.T) {
	at := func(index, parent, master int) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, ParentIndex: parent, MasterIndex: master}
	}
	links := []netlink.Link{
		&netlink.Device{LinkAttrs: at(1, 0, 0)}, &netlink.Device{LinkAttrs: at(2, 0, 4)}, &netlink.Device{LinkAttrs: at(3, 0, 4)},
		&netlink.Bond{LinkAttrs: at(4, 0, 6)}, &netlink.Vlan{LinkAttrs: at(5, 4, 0)}, &netlink.Bridge{LinkAttrs: at(6, 0, 0)},
		&netlink.Veth{LinkAttrs: at(7, 8, 0)}, // a veth's parent is its peer
	}
	for _, c := range []struct {
		name string
		of   []int
		want []int
	}{
		{"a device", []int{1}, []int{1}}, {"a bond", []int{4}, []int{2, 3}}, {"a VLAN on a bond", []int{5}, []int{2, 3}},
		{"a bridge with a bond", []int{6}, []int{2, 3}}, {"both and one of their parts", []int{2, 5, 6}, []int{2, 3}}, {"a veth", []int{7}, []int{7}},
		{"a device that is gone", []int{9}, nil}, {"none", nil, nil},
	} {
		var got []int
		for _, link := range leaves(links, c.of) {
			got = append(got, link.Attrs().Index)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
