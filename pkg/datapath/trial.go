package datapath

import (
	"fmt"

	"fairlead.io/fairlead/pkg/trial"
)

// Try runs the attached programs on a packet without leaving a trace: they run over the live
// tables, but over their own maps of flows, clients and counters, into which Try copies what
// concerns this flow. Packets that they would send go nowhere.
func (d *Datapath) Try(p trial.Packet) (trial.Result, error) {
	t, result, err := d.openTrial(p)
	if err != nil || t == nil {
		return result, err
	}
	return t.Run()
}

// openTrial finds the device and copies what the trial needs from the Datapath, which is blocked no
// longer than that. If it returns no trial, the result is complete. It waits for a growth to end,
// since flows are in two maps meanwhile.
func (d *Datapath) openTrial(p trial.Packet) (*trial.Trial, trial.Result, error) {
	d.changing.Lock()
	defer d.changing.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, trial.Result{}, fmt.Errorf("try a packet: %w", ErrNoMaps)
	}
	if d.packets.Devices.None() {
		return nil, trial.Result{Inside: true}, trial.NotAttached(p.Device)
	}
	if !d.servesDevices() {
		return nil, trial.Result{Idle: true}, trial.NotAttached(p.Device)
	}
	state, err := trial.FindAttached(d.hooks.States(), p)
	if err != nil || state == nil {
		return nil, trial.Result{Inside: true}, err
	}
	fields, err := d.packetFields()
	if err != nil {
		return nil, trial.Result{}, err
	}
	t, err := trial.New(p, state, fields, d.maps)
	return t, trial.Result{}, err
}

// TryAtPod does the same at the device of a pod, with what the pod sends, or else with what it receives. Nothing is
// run if neither end is a pod of this node: the result is that of a client inside.
func (d *Datapath) TryAtPod(p trial.Packet) (trial.Result, error) {
	t, err := d.openPodTrial(p)
	if err != nil || t == nil {
		return trial.Result{Inside: true}, err
	}
	return t.Run()
}

func (d *Datapath) openPodTrial(p trial.Packet) (*trial.Trial, error) {
	d.changing.Lock()
	defer d.changing.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, fmt.Errorf("try a packet: %w", ErrNoMaps)
	}
	if !d.packets.Pods {
		return nil, nil
	}
	fields, err := d.packetFields()
	if err != nil {
		return nil, err
	}
	isNetkit := func(index uint32) bool { return d.outside.pods[index].Netkit }
	return trial.NewAtPod(p, isNetkit, fields, d.maps)
}
