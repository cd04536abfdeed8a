package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
)

// loadPods adds the programs of pods' devices, if there are any.
func (d *Datapath) loadPods(m *maps.Maps, fields map[string]uint64, progs *devices.Programs) error {
	if !d.packets.Pods && !d.packets.Chained {
		return nil
	}
	spec, err := bpf.LoadPod()
	if err == nil {
		err = setConfig(spec.Variables["cfg"], fields)
	}
	if err != nil {
		return fmt.Errorf("read program specs: %w", err)
	}
	from, to := "tc_from_pod", "tc_to_pod"
	if d.packets.Chained {
		from, to = "tc_from_chained", "tc_to_chained"
	}
	for name := range spec.Programs {
		if name != from && name != to && name != "tc_from_pair" && (d.packets.Chained || strings.HasSuffix(name, "_chained")) {
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
		progs.FromPair = loaded.DetachProgram("tc_from_pair")
	}
	return nil
}

// between returns the devices over which packets of pods come to proxies, and from where they have waited, if they do.
func (d *Datapath) between() (list []devices.Device, err error) {
	if d.packets.Proxies {
		list = append(list, devices.Device{Index: 1, Name: "lo", Loopback: true}) // the first of every network namespace
	}
	if d.packets.Pair != 0 {
		end, err := net.InterfaceByName(d.packets.PairEnd)
		if err != nil {
			return list, fmt.Errorf("find where what has waited comes from: %w", err)
		}
		list = append(list, devices.Device{Index: end.Index, Name: end.Name, Pair: true})
	}
	return list, nil
}

// ProxyWay returns why packets of pods do not come to proxies of the node; nil if they do, or there are none.
func (d *Datapath) ProxyWay() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if state := d.hooks.LoopbackState(); state != nil {
		return state.Err
	}
	return nil
}

// PairWay returns why what has waited on the node for its time comes to nobody; nil if it does, or nothing waits.
func (d *Datapath) PairWay() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if state := d.hooks.PairState(); state != nil {
		return state.Err
	}
	return nil
}

func (d *Datapath) podDevices() []devices.Device {
	list := make([]devices.Device, 0, len(d.outside.pods))
	for _, device := range d.outside.pods {
		list = append(list, device)
	}
	return list
}

func podDevice(pod *maps.Pod) devices.Device {
	return devices.Device{Index: int(pod.Index), Name: pod.Device, Pod: true, Netkit: pod.Netkit}
}

// SetPods makes the programs know these pods, and no others, and their devices run the program of pods. Of pods whose devices are another
// plugin's, only those that are kept to rates.
func (d *Datapath) SetPods(pods []maps.Pod) error {
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

// EndRates has the programs keep no pod to a rate any more, and waits for what has been held up by one, by a function, before what it waits in goes. It
// is for before Attach.
func (d *Datapath) EndRates(drained func() error) error {
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

// EndRates does so for the maps that are pinned below a bpf filesystem, if there are any that this version can read.
func EndRates(bpffs string, drained func() error) error {
	m, err := maps.Open(MapsDir(bpffs), false)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, maps.ErrIncompatible) {
		return nil
	}
	if err != nil {
		return err
	}
	defer m.Close()
	return (&Datapath{maps: m}).EndRates(drained)
}

// AddPod makes the programs know one more pod. Its device runs its program when this returns.
func (d *Datapath) AddPod(pod maps.Pod) error {
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

// RemovePod makes the programs forget a pod, whose device is gone.
func (d *Datapath) RemovePod(pod maps.Pod) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.outside.pods, pod.Index)
	if d.maps == nil {
		return nil
	}
	return errors.Join(d.maps.RemovePod(pod), d.hooks.Remove(podDevice(&pod)))
}

// SetNative says where pods are known: what they send there keeps their addresses.
func (d *Datapath) SetNative(prefixes []netip.Prefix) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return fmt.Errorf("write where pods are known: %w", ErrNoMaps)
	}
	_, err := d.maps.SetNative(prefixes)
	return err
}
