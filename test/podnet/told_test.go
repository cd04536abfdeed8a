package podnet

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/podnet"
)

// rated is what the agent's half knows about the rates of pods, by their names.
type rated struct {
	of      atomic.Pointer[map[string]maps.Rates]
	changed chan struct{}
}

func newRates(of map[string]maps.Rates) *rated {
	r := &rated{changed: make(chan struct{}, 1)}
	r.of.Store(&of)
	return r
}

// traits has a pod start with the rates that its runtime asks for, if it asks, as an agent does
// before it knows what the pod is to have.
func (r *rated) traits(pod cni.Pod, asked *cni.Bandwidth, was *podnet.Traits) podnet.Traits {
	if asked != nil && was == nil {
		return podnet.Traits{Rates: maps.Rates{Out: asked.EgressRate / 8, In: asked.IngressRate / 8}}
	}
	return podnet.Traits{Rates: (*r.of.Load())[pod.Name]}
}

// follow reads other rates, one set on each line, until the input ends.
func (r *rated) follow(from io.Reader) error {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		var of map[string]maps.Rates
		if err := json.Unmarshal(lines.Bytes(), &of); err != nil {
			return fmt.Errorf("read rates: %w", err)
		}
		r.of.Store(&of)
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
	return nil // an input that cannot be read has ended
}

// rerate changes the rates of running pods, as other annotations do, and waits until the programs
// know them. On a virtual machine it takes longer to restart an agent than to measure a rate.
func (n *node) rerate(rates map[string]maps.Rates) {
	n.t.Helper()
	n.Rates = rates
	text, err := json.Marshal(rates)
	n.must(err)
	_, err = n.agent.Stdin.Write(append(text, '\n'))
	n.must(err)
	m, err := maps.Open(datapath.MapsDir(n.Forwarding.BPFFS), true)
	n.must(err)
	defer m.Close()
	n.until(fmt.Sprintf("the programs know the rates %v", rates), func() bool { return n.know(m, rates) })
}

// know reports whether the programs have these rates and no others.
func (n *node) know(m *maps.Maps, rates map[string]maps.Rates) bool {
	n.t.Helper()
	type known struct {
		out, in uint64
		class   uint32
		shares  bool
	}
	var have, want []known
	pods := map[uint32]known{} // by pod, because a pod may have several interfaces
	var index uint32
	var row bpf.MapsPodRate
	rows := m.PodRates.Iterate()
	for rows.Next(&index, &row) {
		pods[cmp.Or(row.Pace, index)] = known{row.Out, row.In, row.Class, row.Share != 0}
	}
	n.must(rows.Err())
	for _, pod := range pods {
		have = append(have, pod)
	}
	shares := map[uint64]bool{}
	for _, r := range rates {
		want = append(want, known{r.Out, r.In, uint32(r.Class), r.Share != maps.Share{}})
		shares[r.Share.OfNamespace], shares[r.Share.OfNode] = true, true
	}
	delete(shares, 0)
	list, err := maps.SharePaces(m.ShareRates, m.SharePaces)
	n.must(err)
	for _, pace := range list {
		if !shares[pace.Rate] {
			return false
		}
		delete(shares, pace.Rate)
	}
	order := func(a, b known) int {
		return cmp.Or(cmp.Compare(a.out, b.out), cmp.Compare(a.in, b.in), cmp.Compare(a.class, b.class))
	}
	slices.SortFunc(have, order)
	slices.SortFunc(want, order)
	return slices.Equal(have, want) && len(shares) == 0
}
