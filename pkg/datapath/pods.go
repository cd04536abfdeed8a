package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
)

// loadPods adds the programs for pods' devices, if there are any.
func (d *deviceLinks) loadPods(m *maps.Maps, fields map[string]uint64, progs *devices.Programs) error {
	if !d.packets.Pods && !d.packets.Chained {
		return nil
	}
	spec, err := bpf.LoadPod()
	if err == nil {
		err = bpf.SetConfig(spec.Variables["cfg"], fields)
	}
	if err != nil {
		return fmt.Errorf("read program specs: %w", err)
	}
	from, to := "tc_from_pod", "tc_to_pod"
	if d.packets.Chained {
		from, to = "tc_from_chained", "tc_to_chained"
	}
	needed := []string{from, to}
	if d.packets.Proxies {
		needed = append(needed, "tc_from_lo", "tc_to_lo")
	}
	if d.packets.Pair != 0 {
		needed = append(needed, "tc_from_pacer")
	}
	for name := range spec.Programs {
		if !slices.Contains(needed, name) {
			delete(spec.Programs, name)
		}
	}
	loaded, err := d.loadPacketsOver(m, spec)
	if err != nil {
		return err
	}
	defer loaded.Close()
	progs.FromPod, progs.ToPod = loaded.DetachProgram(from), loaded.DetachProgram(to)
	if d.packets.Proxies {
		progs.FromLo, progs.ToLo = loaded.DetachProgram("tc_from_lo"), loaded.DetachProgram("tc_to_lo")
	}
	if d.packets.Pair != 0 {
		progs.FromPair = loaded.DetachProgram("tc_from_pacer")
	}
	return nil
}

// between returns the devices over which packets of pods reach proxies, and the device that
// delivers rate-limited packets, if these are in use.
func (d *deviceLinks) between() (list []devices.Device, err error) {
	if d.packets.Proxies {
		// The loopback device is the first of every network namespace.
		list = append(list, devices.Device{Index: 1, Name: "lo", Loopback: true})
	}
	if d.packets.Pair != 0 {
		end, err := net.InterfaceByName(d.packets.PairEnd)
		if err != nil {
			return list, fmt.Errorf("find the device that delivers rate-limited packets: %w", err)
		}
		list = append(list, devices.Device{Index: end.Index, Name: end.Name, Pair: true})
	}
	return list, nil
}

// ProxyWay returns why packets of pods cannot reach proxies on the node, nil if they can or there
// are none.
func (d *deviceLinks) ProxyWay() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if state := d.hooks.LoopbackState(); state != nil {
		return state.Err
	}
	return nil
}

// PairWay returns why rate-limited packets that stay on the node cannot be delivered, nil if they
// can or there are none.
func (d *deviceLinks) PairWay() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if state := d.hooks.PairState(); state != nil {
		return state.Err
	}
	return nil
}

func (d *deviceLinks) podDevices() []devices.Device {
	list := make([]devices.Device, 0, len(d.outside.pods))
	for _, device := range d.outside.pods {
		list = append(list, device)
	}
	return list
}

func podDevice(pod *maps.Pod) devices.Device {
	return devices.Device{Index: int(pod.Index), Name: pod.Device, Pod: true, Netkit: pod.Netkit}
}

// SetPods writes these pods, and no others, to the maps and attaches the pod programs to their
// devices. If the devices belong to another plugin, it does so only for pods that have rates.
func (d *deviceLinks) SetPods(pods []maps.Pod) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return fmt.Errorf("write the node's pods: %w", ErrNoMaps)
	}
	write := d.maps.SetPods
	if d.packets.Chained {
		pods = slices.DeleteFunc(slices.Clone(pods), func(p maps.Pod) bool { return !p.Rates.Limited() })
		write = d.maps.SetRates
	}
	d.outside.pods = make(map[uint32]devices.Device, len(pods))
	for i := range pods {
		d.outside.pods[pods[i].Index] = podDevice(&pods[i])
	}
	if _, err := write(pods); err != nil {
		return err
	}
	return d.syncDevices()
}

// EndRates removes all rates of pods and then calls drained, which waits for packets held up by a
// rate, before the device that holds them is removed. Call it before Attach.
func (d *deviceLinks) EndRates(drained func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil
	}
	if had, err := d.maps.SetRates(nil); err != nil || had == 0 {
		return err
	}
	return drained()
}

// EndRates does the same for the maps pinned below a bpf filesystem, if there are any that this
// version can read.
func EndRates(bpffs string, drained func() error) error {
	m, err := maps.Open(MapsDir(bpffs), false)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, maps.ErrIncompatible) {
		return nil
	}
	if err != nil {
		return err
	}
	defer m.Close()
	return (&deviceLinks{shared: &shared{maps: m}}).EndRates(drained)
}

// AddPod writes one more pod to the maps and attaches the pod programs to its device before it
// returns.
func (d *deviceLinks) AddPod(pod maps.Pod) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return fmt.Errorf("write a pod: %w", ErrNoMaps)
	}
	if err := d.maps.AddPod(pod); err != nil {
		return err
	}
	if d.outside.pods == nil {
		d.outside.pods = map[uint32]devices.Device{}
	}
	d.outside.pods[pod.Index] = podDevice(&pod)
	return d.hooks.Add(podDevice(&pod))
}

// RemovePod deletes a pod, whose device is gone, from the maps.
func (d *deviceLinks) RemovePod(pod maps.Pod) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.outside.pods, pod.Index)
	if d.maps == nil {
		return nil
	}
	return errors.Join(d.maps.RemovePod(pod), d.hooks.Remove(podDevice(&pod)))
}

// SetNative sets the prefixes to which pods speak with their own addresses.
func (d *shared) SetNative(prefixes []netip.Prefix) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return fmt.Errorf("write the prefixes that are not masqueraded: %w", ErrNoMaps)
	}
	_, err := d.maps.SetNative(prefixes)
	return err
}
