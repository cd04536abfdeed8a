package podslices

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

const scalePods = 100_000

// scalePod is a pod of a Deployment of ten, with two addresses, in one of as many namespaces.
func scalePod(i, namespaces int) *model.PolicyPod {
	v6 := netip.MustParseAddr("2001:db8::").As16()
	v6[13], v6[14], v6[15] = byte(i>>16), byte(i>>8), byte(i)
	group := i / 10
	return &model.PolicyPod{
		Name:    model.Name{Namespace: fmt.Sprint("namespace-", group%namespaces), Name: fmt.Sprintf("deployment-%d-5d8f9c7b6d-%05d", group, i)},
		Created: 1_790_000_000 + int64(i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), netip.AddrFrom16(v6)},
		Labels: map[string]string{
			"app": fmt.Sprint("app-", group%2), "app.kubernetes.io/name": fmt.Sprint("app-", group%7), "app.kubernetes.io/instance": fmt.Sprint("instance-", group),
			"pod-template-hash": fmt.Sprintf("5d8f9c%04d", group),
		},
		Ports: []model.NamedPort{{Name: "http", Protocol: model.TCP, Port: 8080}},
	}
}

// BenchmarkPack packs 100,000 pods and makes all slices.
func BenchmarkPack(b *testing.B) {
	for _, namespaces := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprint(namespaces, " namespaces"), func(b *testing.B) {
			var pods []*model.PolicyPod
			for i := range scalePods {
				pods = append(pods, scalePod(i, namespaces))
			}
			bytes, slices := 0, 0
			for b.Loop() {
				p := New()
				p.Replace(pods)
				_, rest := p.Changed()
				bytes, slices = 0, len(rest)
				for _, name := range rest {
					text, err := json.Marshal(p.Spec(name))
					if err != nil {
						b.Fatal(err)
					}
					bytes += len(text)
				}
			}
			b.ReportMetric(float64(bytes)/scalePods, "bytes/pod")
			b.ReportMetric(float64(slices), "slices")
		})
	}
}

// TestWritesOfAStorm checks what 100 changes a second come to, in batches of a fifth of a second: one write for each
// change where each is in another namespace, and far fewer where a Deployment is rolled.
func TestWritesOfAStorm(t *testing.T) {
	for _, tt := range []struct {
		name       string
		namespaces int
		step       int // from one pod that changes to the next
		most       int // writes a second
	}{
		{"one Deployment after the other", 1000, 1, 20},
		{"pods of many namespaces", 10_000, 7919, 100},
	} {
		p := New()
		for i := range scalePods {
			p.Set(scalePod(i, tt.namespaces))
		}
		p.Changed()
		writes, bytes, at := 0, 0, 0
		const seconds = 10
		for range seconds * 5 {
			for range 20 {
				pod := scalePod(at%scalePods, tt.namespaces)
				pod.Created++
				p.Set(pod)
				at += tt.step
			}
			first, rest := p.Changed()
			if len(first) > 0 {
				t.Errorf("%s: pods move", tt.name)
			}
			for _, name := range rest {
				text, err := json.Marshal(&source.PodSlice{Spec: *p.Spec(name)})
				if err != nil {
					t.Fatal(err)
				}
				writes, bytes = writes+1, bytes+len(text)
			}
		}
		t.Logf("%s: %d writes a second of %d bytes", tt.name, writes/seconds, bytes/max(1, writes))
		if writes > tt.most*seconds {
			t.Errorf("%s: %d writes in %d seconds, more than %d each", tt.name, writes, seconds, tt.most)
		}
	}
}
