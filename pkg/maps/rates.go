package maps

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
)

// Rates are the bytes per second that a pod may send and receive; 0 means no limit.
type Rates struct {
	Out   uint64 `json:"rate,omitempty"`
	In    uint64 `json:"ingressRate,omitempty"`
	Share Share  `json:"share,omitzero"`
	Class Class  `json:"class,omitempty"`
}

// Limited reports whether anything the pod sends or receives may have to wait.
func (r Rates) Limited() bool { return r.Out > 0 || r.In > 0 || r.Share.id() != 0 }

// Share is the bytes per second that a pod may send together with other pods of this node; 0 means
// no limit.
type Share struct {
	Namespace   string `json:"namespace,omitempty"` // the pod's namespace
	OfNamespace uint64 `json:"ofNamespace,omitempty"`
	OfNode      uint64 `json:"ofNode,omitempty"` // for all pods of the node
}

// NodeShare is the key of the share of all pods of the node.
const NodeShare = 1

// ShareOf returns the key of a namespace's share. It is derived from the name, so it needs no
// record that could be lost, and it is a cryptographic hash, so no namespace can be given a name
// that collides with another's.
func ShareOf(namespace string) uint64 {
	sum := sha256.Sum256([]byte(namespace))
	return binary.LittleEndian.Uint64(sum[:])
}

// id returns the key of the innermost share that a pod is in, 0 if there is none.
func (s Share) id() uint64 {
	switch {
	case s.OfNamespace > 0:
		return ShareOf(s.Namespace)
	case s.OfNode > 0:
		return NodeShare
	}
	return 0
}

// addTo adds the rows of the shares that a pod is in.
func (s Share) addTo(rows map[uint64]bpf.MapsShareRate) {
	within := Share{OfNode: s.OfNode}
	if s.OfNode > 0 {
		rows[NodeShare] = bpf.MapsShareRate{Out: s.OfNode}
	}
	if s.OfNamespace > 0 {
		rows[s.id()] = bpf.MapsShareRate{Out: s.OfNamespace, Within: within.id()}
	}
}

// Class says whose packets go first when not all can go at once.
type Class bpf.MapsPodClass

// The classes, named like the quality of service classes of Kubernetes.
const (
	Burstable  = Class(bpf.MapsPodClassCLASS_BURSTABLE)
	Guaranteed = Class(bpf.MapsPodClassCLASS_GUARANTEED)
	BestEffort = Class(bpf.MapsPodClassCLASS_BESTEFFORT)
)

// of returns the rate in one direction.
func (r Rates) of(kind bpf.MapsPaceKind) uint64 {
	if kind == bpf.MapsPaceKindPACE_OUT {
		return r.Out
	}
	return r.In
}

func (r Rates) row() bpf.MapsPodRate {
	return bpf.MapsPodRate{Out: r.Out, In: r.In, Share: r.Share.id(), Class: uint32(r.Class)}
}

// rate returns the row of a pod's device, or the zero value if it has no rate.
func (p *Pod) rate() bpf.MapsPodRate {
	row := p.Rates.row()
	if row != (bpf.MapsPodRate{}) && p.Pace != p.Index {
		row.Pace = p.Pace
	}
	return row
}

// paceKey returns the key of the row that accounts for one direction of a device with the given
// pod_rates row.
func paceKey(index uint32, row *bpf.MapsPodRate, kind bpf.MapsPaceKind) bpf.MapsPaceKey {
	return bpf.MapsPaceKey{Ifindex: cmp.Or(row.Pace, index), Kind: uint32(kind)}
}

// Pace is the traffic of a rate-limited pod in one direction.
type Pace struct {
	Rate    uint64 // bytes per second
	Passed  uint64 // bytes
	Dropped uint64 // packets that would have had to wait too long
	Marked  uint64 // packets marked (ECN) because they had to wait
	// Window is the number of bytes that each sender to the pod may have in flight, as last
	// enforced; 0 means no limit.
	Window uint64
}

// Paced is the traffic of a rate-limited pod. A direction without a limit is nil.
type Paced struct {
	Out, In *Pace
	// Of is the index of the device whose rows these are: another device of the pod if the two
	// share their rows.
	Of uint32
}

// directions are the directions in which a pod can be rate-limited.
var directions = []bpf.MapsPaceKind{bpf.MapsPaceKindPACE_OUT, bpf.MapsPaceKindPACE_IN}

// rateMaps hold the rates of pods and what their pods, namespaces and the node have sent.
type rateMaps struct {
	PodRates, PodPaces     *ebpf.Map
	ShareRates, SharePaces *ebpf.Map
}

// SetRates makes the maps hold the rates of these pods and no others, and returns how many rows it
// changed.
func (m *rateMaps) SetRates(want []Pod) (changed int, err error) {
	if changed, err = m.setRates(want); err != nil {
		return changed, fmt.Errorf("write the rates of the node's pods: %w", err)
	}
	return changed, nil
}

func (m *rateMaps) setRates(want []Pod) (changed int, err error) {
	rates, paces := map[uint32]bpf.MapsPodRate{}, map[bpf.MapsPaceKey]bpf.MapsPodPace{}
	shares, sharePaces := map[uint64]bpf.MapsShareRate{}, map[uint64]bpf.MapsPodPace{}
	for i := range want {
		p := &want[i]
		row := p.rate()
		if row == (bpf.MapsPodRate{}) {
			continue
		}
		rates[p.Index] = row
		p.Rates.Share.addTo(shares)
		for _, kind := range directions {
			if p.Rates.of(kind) > 0 {
				paces[paceKey(p.Index, &row, kind)] = bpf.MapsPodPace{}
			}
		}
		if err := m.preparePaces(p); err != nil {
			return 0, err
		}
	}
	if err := m.putShares(shares); err != nil {
		return 0, err
	}
	if changed, err = putRows(m.PodRates, rates); err != nil {
		return changed, err
	}
	n, err := dropRows(m.PodRates, rates)
	changed += n
	if err != nil {
		return changed, err
	}
	for id := range shares {
		sharePaces[id] = bpf.MapsPodPace{}
	}
	_, err = dropRows(m.PodPaces, paces)
	_, err2 := dropRows(m.ShareRates, shares)
	_, err3 := dropRows(m.SharePaces, sharePaces)
	return changed, errors.Join(err, err2, err3)
}

// putShares writes these shares and leaves others alone. What pods of a share have sent so far
// stays.
func (m *rateMaps) putShares(want map[uint64]bpf.MapsShareRate) error {
	for id, share := range want {
		var was bpf.MapsShareRate
		var pace bpf.MapsPodPace
		err := m.ShareRates.Lookup(&id, &was)
		if err == nil && was == share {
			continue
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		if err := m.SharePaces.Lookup(&id, &pace); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		if was.Out != share.Out {
			preserveDeparture(&pace, Horizon)
		}
		if err := errors.Join(m.SharePaces.Put(&id, &pace), m.ShareRates.Put(&id, &share)); err != nil {
			return err
		}
	}
	return nil
}

// setRate is SetRates for a single pod. It leaves others alone.
func (m *rateMaps) setRate(p *Pod) error {
	row := p.rate()
	if row != (bpf.MapsPodRate{}) {
		shares := map[uint64]bpf.MapsShareRate{}
		p.Rates.Share.addTo(shares)
		if err := errors.Join(m.preparePaces(p), m.putShares(shares), m.PodRates.Put(&p.Index, &row)); err != nil {
			return err
		}
	} else if err := m.PodRates.Delete(&p.Index); err != nil {
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		return err
	}
	for _, kind := range directions {
		key := bpf.MapsPaceKey{Ifindex: p.Index, Kind: uint32(kind)}
		if p.Rates.of(kind) > 0 && paceKey(p.Index, &row, kind) == key {
			continue
		}
		if err := m.dropPace(key); err != nil {
			return err
		}
	}
	return nil
}

// dropPace deletes a row of pod_paces unless another device uses it.
func (m *rateMaps) dropPace(key bpf.MapsPaceKey) error {
	var pace bpf.MapsPodPace
	err := m.PodPaces.Lookup(&key, &pace)
	if err == nil {
		var needed bool
		if needed, err = m.needsPace(key); err != nil || needed {
			return err
		}
		err = m.PodPaces.Delete(&key)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// needsPace reports whether any device uses a row of pod_paces.
func (m *rateMaps) needsPace(key bpf.MapsPaceKey) (bool, error) {
	var ifindex uint32
	var row bpf.MapsPodRate
	rows := m.PodRates.Iterate()
	for rows.Next(&ifindex, &row) {
		kind := bpf.MapsPaceKind(key.Kind)
		if paceKey(ifindex, &row, kind) == key && (Rates{Out: row.Out, In: row.In}).of(kind) > 0 {
			return true, nil
		}
	}
	return false, rows.Err()
}

// preparePaces creates the rows of pod_paces that a pod needs, before it gets a rate. The counts
// stay, even if another device of the pod accounts for them from now on.
func (m *rateMaps) preparePaces(p *Pod) error {
	var was bpf.MapsPodRate
	if err := m.PodRates.Lookup(&p.Index, &was); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	row := p.rate()
	longest := map[bpf.MapsPaceKind]time.Duration{bpf.MapsPaceKindPACE_OUT: Horizon, bpf.MapsPaceKindPACE_IN: Patience}
	for _, kind := range directions {
		rate, before := p.Rates.of(kind), Rates{Out: was.Out, In: was.In}.of(kind)
		if rate == 0 {
			continue
		}
		key, old, pace := paceKey(p.Index, &row, kind), paceKey(p.Index, &was, kind), bpf.MapsPodPace{}
		err := m.PodPaces.Lookup(&key, &pace)
		if err == nil && (before == 0 || before == rate) {
			continue
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) && before > 0 && old != key {
			err = m.PodPaces.Lookup(&old, &pace)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		if before != rate {
			preserveDeparture(&pace, longest[kind])
		}
		if err := m.PodPaces.Put(&key, &pace); err != nil {
			return err
		}
	}
	return nil
}

// The programs let packets wait for this long at most (bpf/lib/rate.h): those that a pod sends, and
// those that it receives.
const (
	Horizon  = 2 * time.Second
	Patience = Horizon / 4
)

// turnParts is how many parts of a nanosecond a departure time counts in.
const turnParts = 16

// preserveDeparture keeps the departure time of the next packet when a rate changes, so that packets do not
// overtake those that wait by the earlier rate. At a low rate it may be minutes ahead, by the time
// that the last packet took; then the next may leave at once.
func preserveDeparture(pace *bpf.MapsPodPace, most time.Duration) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil || pace.Next/turnParts > uint64(now.Nano())+uint64(most) {
		pace.Next = 0
	}
}

// Paces returns the rate-limited pods by device index.
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
			key, pace := paceKey(ifindex, &row, kind), bpf.MapsPodPace{}
			if err := paces.Lookup(&key, &pace); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return nil, fmt.Errorf("read the traffic of a pod: %w", err)
			}
			both[kind] = &Pace{Rate: rate, Passed: pace.Sent, Dropped: pace.Dropped, Marked: pace.Marked, Window: pace.Window.Bytes}
		}
		if row.Out == 0 && row.In == 0 && row.Share == 0 {
			continue
		}
		list[ifindex] = Paced{Out: both[bpf.MapsPaceKindPACE_OUT], In: both[bpf.MapsPaceKindPACE_IN], Of: cmp.Or(row.Pace, ifindex)}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the rates of the node's pods: %w", err)
	}
	return list, nil
}

// SharePaces returns the traffic of the shares, by key.
func SharePaces(rates, paces *ebpf.Map) (map[uint64]Pace, error) {
	list := map[uint64]Pace{}
	var id uint64
	var row bpf.MapsShareRate
	rows := rates.Iterate()
	for rows.Next(&id, &row) {
		var pace bpf.MapsPodPace
		if err := paces.Lookup(&id, &pace); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("read the traffic of pods that share a rate: %w", err)
		}
		list[id] = Pace{Rate: row.Out, Passed: pace.Sent, Dropped: pace.Dropped}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the rates that pods share: %w", err)
	}
	return list, nil
}
