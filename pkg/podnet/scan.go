package podnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"fairlead.io/fairlead/pkg/cni"

	"golang.org/x/sys/unix"
)

const (
	// scanEvery is the interval between looks for what is missing or left over when no event asks
	// for one. What somebody removes has to be back within ten seconds.
	scanEvery = 8 * time.Second
	// scanApart is the least time between two looks: pods may come and go by the hundred.
	scanApart = 200 * time.Millisecond
	// youth is how long an address without a device is taken to be one whose device a plugin is
	// still making.
	youth = 2 * time.Minute
	// looks is how many looks in a row have to miss a device for it to count as gone: a plugin that
	// finds a half-made device removes it and makes it again.
	scansUntilGone = 2
)

// load reads the files. It removes those of another boot, since nothing that they describe can
// exist any more.
func (n *Network) load() error {
	names, err := n.leases.files.names(true)
	if err != nil {
		return err
	}
	var found []*Lease
	for _, name := range names {
		lease := &Lease{}
		err := n.leases.files.read(name, lease)
		if err == nil {
			err = lease.validate(name)
		}
		if err != nil || lease.Boot != n.cfg.Boot {
			if err := n.discard(n.leases.files, name, err); err != nil {
				return err
			}
			continue
		}
		found = append(found, lease)
	}
	slices.SortFunc(found, func(a, b *Lease) int { return cmp.Compare(a.Released, b.Released) })
	for _, lease := range found {
		n.leases.add(lease)
	}
	if names, err = n.files.names(true); err != nil {
		return err
	}
	for _, name := range names {
		record := &Record{}
		err := n.files.read(name, record)
		if err == nil {
			err = record.validate(name)
		}
		if err != nil || record.Boot != n.cfg.Boot {
			if err := n.discard(n.files, name, err); err != nil {
				return err
			}
			continue
		}
		n.records[name] = record
	}
	return nil
}

// discard removes an unusable file. If its pod lives, reconcileAtStart adopts the pod's device.
func (n *Network) discard(f folder, name string, why error) error {
	if why != nil {
		n.cfg.Log.Warn("removing an unreadable record", "file", name, "error", why)
	}
	return f.remove(name)
}

// reconcileAtStart makes the files and the devices agree when the agent starts. A pod that lives keeps
// everything.
func (n *Network) reconcileAtStart() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cfg.Chained {
		return n.scan(true)
	}
	_, pods, err := links()
	if err != nil {
		return err
	}
	leads, err := hostRoutes()
	if err != nil {
		return err
	}
	for addr, index := range leads {
		for _, pod := range pods {
			if pod.index == index {
				pod.addrs = append(pod.addrs, addr)
			}
		}
	}
	known, err := hostNeighbors()
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if err := n.adopt(pod, known); err != nil {
			return err
		}
	}
	return n.scan(true)
}

// Run keeps the node's routes to its pods right, and reclaims what is left over, until the context
// ends.
func (n *Network) Run(ctx context.Context) error {
	heard, err := listen(ctx)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-heard:
		case <-n.cfg.Changed:
		case <-time.After(scanEvery):
		}
		n.mu.Lock()
		err := n.scan(false)
		n.ports.takeMoved()
		n.mu.Unlock()
		if err != nil {
			n.cfg.Log.Warn("cannot reconcile the pods' devices, trying again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(scanApart):
		}
	}
}

// scan compares the kernel's devices, routes and neighbors with the records, and repairs what
// differs.
func (n *Network) scan(start bool) error {
	names, pods, err := links()
	if err != nil {
		return err
	}
	errs := []error{n.dropGone(names, pods, start), n.restore()}
	if !n.cfg.Chained {
		errs = append(errs, n.mend())
	}
	return errors.Join(append(errs, n.decideTraits(), n.writePods())...)
}

// traits returns how a pod is to be treated. A new pod that takes over an interface does not
// inherit its traits.
func (n *Network) traits(record, was *Record) Traits {
	if n.cfg.Traits == nil {
		return Traits{}
	}
	if was == nil || was.Pod != record.Pod {
		return n.cfg.Traits(record.Pod, record.Device.Bandwidth, nil)
	}
	return n.cfg.Traits(record.Pod, record.Device.Bandwidth, &was.Traits)
}

// Decide treats each pod as Config.Traits now says, and returns once the programs do.
func (n *Network) Decide() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.decideTraits(), n.writePods())
}

// decideTraits updates the records of the pods whose treatment has changed.
func (n *Network) decideTraits() error {
	var errs []error
	for name, record := range n.records {
		traits := n.traits(record, record)
		if traits == record.Traits {
			continue
		}
		is := *record
		is.Traits = traits
		if err := n.files.replace(name, &is); err != nil {
			errs = append(errs, err)
			continue
		}
		n.records[name] = &is
		n.cfg.Log.Info("changed how a pod is treated", "pod", record.Pod.String(), "checked", !traits.Unchecked, "proxied", traits.Proxy.Asked,
			"proxy", traits.Proxy.Port, "sends", traits.Out, "gets", traits.In, "bbr", traits.BBR)
	}
	return errors.Join(errs...)
}

// dropGone releases what belongs to devices that are gone.
func (n *Network) dropGone(names map[int]string, pods map[string]*endpoint, start bool) error {
	missing := map[string]bool{}
	for name, record := range n.records {
		missing[name] = names[record.Device.Index] != record.Device.Name
	}
	for name, leased := range n.leases.byDevice {
		registered := n.records[name] != nil
		if pods[name] == nil && (registered || start || uptime()-leased[0].At > youth) {
			missing[name] = true
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		if !missing[name] {
			delete(n.absent, name)
			continue
		}
		if n.absent[name]++; !start && n.absent[name] < scansUntilGone {
			continue
		}
		n.reclaimed++
		n.cfg.Log.Info("reclaimed what belonged to a pod whose device is gone", "device", name)
		errs = append(errs, n.forget(name))
	}
	return errors.Join(errs...)
}

// mend restores the routes and neighbors that somebody removed.
func (n *Network) mend() error {
	routes, err := mainRoutes()
	if err != nil {
		return err
	}
	n.proxies.lans = lansOf(routes)
	if len(n.records) == 0 {
		return nil
	}
	if len(n.proxies.lans) > 0 {
		// This refreshes the pools. While the CIDRs are unknown, beside finds nothing to answer for.
		_ = n.ready(cni.ErrNotAvailable)
	}
	leads := singles(routes)
	known, err := hostNeighbors()
	if err != nil {
		return err
	}
	answered, err := n.proxies.answered()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(n.records)) {
		record := n.records[name]
		index := record.Device.Index
		if slices.ContainsFunc(record.Addresses, func(addr netip.Addr) bool {
			return leads[addr] != index || !known[neighbor{index, addr, record.Device.PodMAC}] || !n.proxies.isAnswered(addr, answered)
		}) {
			err := n.connect(record)
			if errors.Is(err, unix.ENODEV) {
				continue // the device goes, and the pod with it
			}
			n.mended++
			if err != nil {
				errs = append(errs, fmt.Errorf("connect %s: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}
