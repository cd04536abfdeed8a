package podnet

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/cni"
)

// A pod's files can be lost while the pod lives. Its device and the routes and neighbors that lead
// there belong to the node, where no pod can change them, and they say enough to keep serving the
// pod and to check what it sends. They do not say what the runtime asked for: the Pod names its
// host ports, and the runtime repeats the rest the next time it asks about the pod.

// adopt takes over a device whose files are lost, together with the addresses that are routed to
// it. A device without addresses is removed: its pod was never connected, or has been released.
func (n *Network) adopt(pod *endpoint, known map[neighbor]bool) error {
	record := n.records[pod.name]
	if record == nil {
		record = n.adopted(pod, known)
	}
	for _, addr := range pod.addrs {
		if n.leases.all[addr] != nil {
			continue // already leased: in use by this pod or another, or cooling
		}
		lease := &Lease{
			Address: addr, Owner: record.Owner, Pod: record.Pod, Device: pod.name, Boot: n.cfg.Boot,
			Since: time.Now().UTC().Truncate(time.Second), At: uptime(),
		}
		if err := n.leases.files.create(addr.String(), lease); err != nil {
			return err
		}
		n.leases.add(lease)
		n.cfg.Log.Warn("took over an address whose record is lost", "address", addr, "device", pod.name, "pod", pod.alias)
	}
	leased := n.leases.byDevice[pod.name]
	if len(leased) == 0 {
		n.reclaimed++
		return removeLink(pod.name)
	}
	if n.records[pod.name] != nil {
		return nil
	}
	for _, lease := range leased {
		if slices.Contains(pod.addrs, lease.Address) {
			record.Addresses = append(record.Addresses, lease.Address)
		}
	}
	return n.note(pod.name, record)
}

// adopted builds the record of a device from what the node itself knows, without its addresses.
func (n *Network) adopted(pod *endpoint, known map[neighbor]bool) *Record {
	record := &Record{
		Adopted: true, Boot: n.cfg.Boot, Since: time.Now().UTC().Truncate(time.Second),
		Device: cni.Device{Index: pod.index, Name: pod.name, MAC: pod.mac, Kind: pod.kind},
	}
	for neighbor := range known {
		if neighbor.index == pod.index && slices.Contains(pod.addrs, neighbor.addr) {
			record.Device.PodMAC = neighbor.mac
		}
	}
	record.Pod.Namespace, record.Pod.Name, _ = strings.Cut(pod.alias, "/")
	if record.Pod.Validate() != nil {
		record.Pod = cni.Pod{}
	}
	for _, lease := range n.leases.byDevice[pod.name] {
		if lease.Owner != (cni.Attachment{}) {
			record.Owner, record.Pod = lease.Owner, lease.Pod
		}
	}
	return record
}

// note stores an adopted record. A record without addresses is not stored: nothing leads to the
// device yet, because a plugin is still working on it.
func (n *Network) note(name string, record *Record) error {
	if len(record.Addresses) == 0 {
		return nil
	}
	slices.SortFunc(record.Addresses, netip.Addr.Compare)
	if err := record.validate(name); err != nil {
		n.unknown[name] = record.Pod
		n.cfg.Log.Warn("cannot take over a pod whose record is lost: the node's stack alone carries its "+
			"packets and nothing checks their source; delete the pod to have it created again", "device", name, "pod", record.Pod.String(), "error", err)
		return nil
	}
	record.Traits = n.traits(record, nil)
	if err := n.files.replace(name, record); err != nil {
		return err
	}
	n.records[name] = record
	n.cfg.Log.Warn("took over a pod's device whose record is lost", "device", name, "pod", record.Pod.String(), "addresses", record.Addresses)
	return nil
}

// recognize completes adopted leases and records with their owner, whom the name of the device
// identifies.
func (n *Network) recognize(owner cni.Attachment, pod cni.Pod) error {
	name := owner.Device()
	for _, lease := range n.leases.byDevice[name] {
		if lease.Owner != (cni.Attachment{}) {
			continue
		}
		is := *lease
		is.Owner, is.Pod = owner, cmp.Or(pod, lease.Pod)
		if err := n.leases.files.replace(lease.Address.String(), &is); err != nil {
			return err
		}
		*lease = is
	}
	record := n.records[name]
	if record == nil || record.Owner != (cni.Attachment{}) {
		return nil
	}
	is := *record
	is.Owner, is.Pod = owner, cmp.Or(pod, record.Pod)
	return n.supersede(name, record, &is)
}

// supersede replaces a record by one that knows more.
func (n *Network) supersede(name string, was, is *Record) error {
	if err := n.files.replace(name, is); err != nil {
		return err
	}
	n.ports.open(is, was)
	n.records[name] = is
	return nil
}

// remember rebuilds a lost or adopted record from a runtime's request that repeats what the record
// held.
func (n *Network) remember(request *cni.Request) error {
	device, name := request.Device, request.Attachment.Device()
	if n.cfg.Chained || device == nil || device.Name != name {
		return nil
	}
	was := n.records[name]
	_, unknown := n.unknown[name]
	if was == nil && !unknown || was != nil && (!was.Adopted || was.Device.Index != device.Index) {
		return nil
	}
	is := &Record{
		Owner: request.Attachment, Pod: request.Pod, Addresses: request.Addresses, Device: *device, Boot: n.cfg.Boot,
		Since: time.Now().UTC().Truncate(time.Second),
	}
	if was != nil { // trust what the node has over what the runtime repeats
		is.Addresses, is.Device.MAC, is.Device.PodMAC, is.Unchecked, is.Since = was.Addresses, was.Device.MAC, was.Device.PodMAC, was.Unchecked, was.Since
	}
	if err := n.ports.vacant(is, n.records); err != nil {
		return err
	}
	if err := n.supersede(name, was, is); err != nil {
		return err
	}
	delete(n.unknown, name)
	return n.connect(is)
}

// restore rewrites the files that somebody removed.
func (n *Network) restore() error {
	records, leases := map[string]any{}, map[string]any{}
	for name, record := range n.records {
		records[name] = record
	}
	for addr, lease := range n.leases.all {
		leases[addr.String()] = lease
	}
	return errors.Join(n.files.restore(records), n.leases.files.restore(leases))
}

// restore writes those of the records that have no file.
func (f folder) restore(records map[string]any) error {
	names, err := f.names(false)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(f.dir, 0o700)
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		delete(records, name)
	}
	var errs []error
	for name, record := range records {
		if err := f.create(name, record); err != nil {
			errs = append(errs, fmt.Errorf("restore %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
