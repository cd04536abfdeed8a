package maps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// Rates are how many bytes a second a pod may send and get; 0 for as many as it can.
type Rates struct {
	Out uint64 `json:"rate,omitempty"`
	In  uint64 `json:"ingressRate,omitempty"`
}

// of returns the rate of one direction.
func (r Rates) of(kind bpf.MapsPaceKind) uint64 {
	if kind == bpf.MapsPaceKindPACE_OUT {
		return r.Out
	}
	return r.In
}

func (r Rates) row() bpf.MapsPodRate { return bpf.MapsPodRate{Out: r.Out, In: r.In} }

// Pace is what a pod that is kept to a rate has sent or got.
type Pace struct {
	Rate    uint64 // bytes a second
	Passed  uint64 // bytes
	Dropped uint64 // packets that would have had to wait for too long
	Marked  uint64 // packets that were told that they had to wait
}

// Paced is what a pod that is kept to rates has sent and got; nil where it has none.
type Paced struct{ Out, In *Pace }

// directions are those in which a pod may be kept to a rate.
var directions = []bpf.MapsPaceKind{bpf.MapsPaceKindPACE_OUT, bpf.MapsPaceKindPACE_IN}

// setRates makes the maps have the rates of these pods, and no others, and returns how many rows that changed.
func (m *Maps) setRates(want []Pod) (changed int, err error) {
	rates, paces := map[uint32]bpf.MapsPodRate{}, map[bpf.MapsPaceKey]bpf.MapsPodPace{}
	for i := range want {
		p := &want[i]
		if p.Rates == (Rates{}) {
			continue
		}
		rates[p.Index] = p.Rates.row()
		for _, kind := range directions {
			if p.Rates.of(kind) > 0 {
				paces[bpf.MapsPaceKey{Ifindex: p.Index, Kind: uint32(kind)}] = bpf.MapsPodPace{}
			}
		}
		if err := m.preparePaces(p); err != nil {
			return 0, err
		}
	}
	if changed, err = putRows(m.PodRates, rates); err != nil {
		return changed, err
	}
	n, err := dropRows(m.PodRates, rates)
	changed += n
	if err == nil {
		_, err = dropRows(m.PodPaces, paces)
	}
	return changed, err
}

// setRate does so for one pod.
func (m *Maps) setRate(p *Pod) error {
	if p.Rates != (Rates{}) {
		row := p.Rates.row()
		if err := errors.Join(m.preparePaces(p), m.PodRates.Put(&p.Index, &row)); err != nil {
			return err
		}
	} else if err := m.PodRates.Delete(&p.Index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	for _, kind := range directions {
		key := bpf.MapsPaceKey{Ifindex: p.Index, Kind: uint32(kind)}
		if p.Rates.of(kind) > 0 {
			continue
		}
		if err := m.PodPaces.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// preparePaces makes room for what a pod sends and gets, before it has a rate. What it has sent so far stays, but one that gets
// another rate begins anew: what it has sent ahead at a low one may have taken minutes.
func (m *Maps) preparePaces(p *Pod) error {
	var was bpf.MapsPodRate
	if err := m.PodRates.Lookup(&p.Index, &was); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	for _, kind := range directions {
		rate, before := p.Rates.of(kind), Rates{Out: was.Out, In: was.In}.of(kind)
		if rate == 0 {
			continue
		}
		key, pace := bpf.MapsPaceKey{Ifindex: p.Index, Kind: uint32(kind)}, bpf.MapsPodPace{}
		switch err := m.PodPaces.Lookup(&key, &pace); {
		case errors.Is(err, ebpf.ErrKeyNotExist):
		case err != nil:
			return err
		case before == 0 || before == rate:
			continue
		}
		pace.Next = 0
		if err := m.PodPaces.Put(&key, &pace); err != nil {
			return err
		}
	}
	return nil
}

// Paces returns the pods that are kept to a rate, by device.
func Paces(rates, paces *ebpf.Map) (map[uint32]Paced, error) {
	list := map[uint32]Paced{}
	var ifindex uint32
	var row bpf.MapsPodRate
	rows := rates.Iterate()
	for rows.Next(&ifindex, &row) {
		var both [2]*Pace
		for _, kind := range directions {
			rate := Rates{Out: row.Out, In: row.In}.of(kind)
			if rate == 0 {
				continue
			}
			key, pace := bpf.MapsPaceKey{Ifindex: ifindex, Kind: uint32(kind)}, bpf.MapsPodPace{}
			if err := paces.Lookup(&key, &pace); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return nil, fmt.Errorf("read what a pod has sent: %w", err)
			}
			both[kind] = &Pace{Rate: rate, Passed: pace.Sent, Dropped: pace.Dropped, Marked: pace.Marked}
		}
		list[ifindex] = Paced{Out: both[bpf.MapsPaceKindPACE_OUT], In: both[bpf.MapsPaceKindPACE_IN]}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the rates of the node's pods: %w", err)
	}
	return list, nil
}
