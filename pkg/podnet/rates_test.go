package podnet

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/maps"
)

// countedAs is what the programs were told: for each device, the index under which its traffic is
// counted.
type countedAs map[uint32]uint32

func (t countedAs) SetPods(pods []maps.Pod) error {
	clear(t)
	for _, pod := range pods {
		t[pod.Index] = pod.Pace
	}
	return nil
}
func (t countedAs) AddPod(pod maps.Pod) error    { t[pod.Index] = pod.Pace; return nil }
func (t countedAs) RemovePod(pod maps.Pod) error { delete(t, pod.Index); return nil }

// A pod's traffic is counted in one place for all its interfaces. Each interface whose owner is not
// known counts for itself.
func TestOnePlaceForAllInterfaces(t *testing.T) {
	have := countedAs{}
	n := &Network{cfg: Config{Programs: have}, records: map[string]*Record{}}
	for name, r := range map[string]struct {
		index     int
		container string
	}{"a0": {12, "a"}, "a1": {7, "a"}, "a2": {9, "a"}, "b0": {8, "b"}, "lost": {3, ""}, "lost too": {4, ""}} {
		n.records[name] = &Record{Owner: cni.Attachment{Container: r.container}, Device: cni.Device{Index: r.index}}
	}
	want := countedAs{12: 7, 7: 7, 9: 7, 8: 8, 3: 0, 4: 0}
	if err := n.writePods(); err != nil || cmp.Diff(want, have) != "" {
		t.Errorf("programs were told %v, want %v; error %v", have, want, err)
	}
	for _, record := range n.records {
		if got, want := n.firstOf(record), want[uint32(record.Device.Index)]; want != 0 && got != int(want) || want == 0 && got != record.Device.Index {
			t.Errorf("first device of %d is %d, want %d", record.Device.Index, got, want)
		}
	}
	n.records["a0"].Rates, n.records["a1"].Rates = maps.Rates{Out: 1000, In: 4000}, maps.Rates{Out: 1000, In: 4000}
	n.records["b0"].Rates = maps.Rates{In: 100, Share: maps.Share{Namespace: "shop", OfNamespace: 300, OfNode: 5000}}
	n.records["lost"].Rates = maps.Rates{Share: maps.Share{Namespace: "shop", OfNamespace: 300, OfNode: 5000}}
	n.records["lost too"].Rates = maps.Rates{Share: maps.Share{Namespace: "other", OfNode: 5000}}
	if all, most := n.waits(); all != 2*1000+4000/2+100/2+2*300+2*5000 || most != 2*5000 {
		t.Errorf("%d bytes may be queued, at most %d of one pod or share", all, most)
	}
	if got := n.podsWith(func(r *Record) bool { return r.Rates.Limited() }); got != 4 {
		t.Errorf("%d pods have a rate, want 4", got)
	}
	late := &Record{Owner: cni.Attachment{Container: "b"}, Device: cni.Device{Index: 20}}
	if got := n.firstOf(late); got != 8 {
		t.Errorf("first device for a new interface of pod b is %d, want 8", got)
	}
}
