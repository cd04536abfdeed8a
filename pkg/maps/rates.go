package maps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// Pace is what a pod that is kept to a rate has sent out of the node.
type Pace struct {
	Rate    uint64 // bytes a second
	Sent    uint64 // bytes
	Dropped uint64 // packets that would have had to wait for too long
}

// setRates makes the maps have the rates of these pods, and no others, and returns how many rows that changed.
func (m *Maps) setRates(want []Pod) (changed int, err error) {
	rates, paces := map[uint32]bpf.MapsPodRate{}, map[uint32]bpf.MapsPodPace{}
	for i := range want {
		if p := &want[i]; p.Rate > 0 {
			rates[p.Index], paces[p.Index] = bpf.MapsPodRate{Bytes: p.Rate}, bpf.MapsPodPace{}
			if err := errors.Join(m.addPace(p.Index), m.forgive(p.Index, p.Rate)); err != nil {
				return 0, err
			}
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
	if p.Rate > 0 {
		row := bpf.MapsPodRate{Bytes: p.Rate}
		return errors.Join(m.addPace(p.Index), m.forgive(p.Index, p.Rate), m.PodRates.Put(&p.Index, &row))
	}
	for _, of := range []*ebpf.Map{m.PodRates, m.PodPaces} {
		if err := of.Delete(&p.Index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// forgive has a pod that gets another rate begin anew: what it has sent ahead at a low one may have taken minutes.
func (m *Maps) forgive(ifindex uint32, rate uint64) error {
	var was bpf.MapsPodRate
	if err := m.PodRates.Lookup(&ifindex, &was); errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && was.Bytes == rate {
		return nil
	} else if err != nil {
		return err
	}
	var pace bpf.MapsPodPace
	if err := m.PodPaces.Lookup(&ifindex, &pace); err != nil {
		return err
	}
	pace.Next = 0
	return m.PodPaces.Update(&ifindex, &pace, ebpf.UpdateExist)
}

// addPace makes room for what a pod sends, before it has a rate. What it has sent so far stays.
func (m *Maps) addPace(ifindex uint32) error {
	err := m.PodPaces.Update(&ifindex, &bpf.MapsPodPace{}, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return nil
	}
	return err
}

// Paces returns the pods that are kept to a rate, by device.
func Paces(rates, paces *ebpf.Map) (map[uint32]Pace, error) {
	list := map[uint32]Pace{}
	var ifindex uint32
	var rate bpf.MapsPodRate
	rows := rates.Iterate()
	for rows.Next(&ifindex, &rate) {
		var pace bpf.MapsPodPace
		if err := paces.Lookup(&ifindex, &pace); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("read what a pod has sent: %w", err)
		}
		list[ifindex] = Pace{Rate: rate.Bytes, Sent: pace.Sent, Dropped: pace.Dropped}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the rates of the node's pods: %w", err)
	}
	return list, nil
}
