package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/flowtable"
	"fairlead.io/fairlead/pkg/maps"
)

// hookSet is a set of those groups of programs that are not always needed.
type hookSet uint8

const (
	datagramHooks  hookSet = 1 << iota // sendmsg and recvmsg, for frontends of UDP
	bindHooks                          // bind, for NodePorts
	packetHooks                        // the programs at devices, for frontends reached from outside
	congestionHook                     // at established connections, if pods may have their own congestion control

	allHooks = datagramHooks | bindHooks | packetHooks
)

// hooksOf returns the group of a program, 0 if it is always needed.
func hooksOf(program string) hookSet {
	switch {
	case strings.HasPrefix(program, "sock_sendmsg"), strings.HasPrefix(program, "sock_recvmsg"):
		return datagramHooks
	case strings.HasPrefix(program, "sock_bind"):
		return bindHooks
	case program == "sock_established":
		return congestionHook
	}
	return 0
}

// hooksFor returns the groups that a frontend needs.
func hooksFor(key maps.SvcKey, row maps.Svc) (need hookSet) {
	if maps.IsHosted(key) {
		return packetHooks
	}
	if key.Proto == unix.IPPROTO_UDP {
		need |= datagramHooks
	}
	if row.Kind == maps.NodePort {
		need |= bindHooks
	}
	if row.Kind != maps.ClusterIP || maps.IsPing(key) {
		need |= packetHooks
	}
	return need
}

// Prepare attaches programs that these frontends need and no earlier one needed. Call it before the
// rows are in the map. Connections to them that the stack translates until then stay with the
// stack; see flowtable.Importer. If it fails, the attached programs are as before. Programs stay attached until
// another process starts.
func (d *Datapath) Prepare(keys []maps.SvcKey, rows []maps.Svc) error {
	var need hookSet
	for i, key := range keys {
		need |= hooksFor(key, rows[i])
	}
	known := frontendsOf(keys, rows)
	if !d.lacks(need, known) {
		return nil
	}
	d.changing.Lock()
	defer d.changing.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.needs
	d.needs |= need
	if d.needs != before {
		if err := d.attachPrograms(); err != nil {
			d.needs = before
			return fmt.Errorf("prepare for frontends: %w", err)
		}
	}
	if d.servesDevices() {
		d.importer.Import(known)
	}
	return nil
}

// lacks reports whether frontends need anything new. Usually they don't, and then Prepare does not
// wait for changes under way.
func (d *Datapath) lacks(need hookSet, known flowtable.Frontends) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return need&^d.needs != 0 || !d.importer.Done() && len(known) > 0
}

// addNeeded adds the groups that the frontends in the maps need.
func (d *Datapath) addNeeded() error {
	if d.needs&allHooks == allHooks {
		return nil
	}
	return d.tables.Svcs.Each(func(key maps.SvcKey, row maps.Svc) { d.needs |= hooksFor(key, row) })
}

// frontendsOf returns those frontends that clients outside dial.
func frontendsOf(keys []maps.SvcKey, rows []maps.Svc) flowtable.Frontends {
	f := flowtable.Frontends{}
	for i, key := range keys {
		addOutside(f, key, rows[i])
	}
	return f
}

// addOutside adds a frontend if clients outside dial it.
func addOutside(f flowtable.Frontends, key maps.SvcKey, row maps.Svc) {
	if !maps.IsHosted(key) && hooksFor(key, row)&packetHooks != 0 && (key.Proto == unix.IPPROTO_TCP || key.Proto == unix.IPPROTO_UDP) {
		f[key] = struct{}{}
	}
}

// importConnections calls Import for the frontends in the maps, unless devices have had programs for them
// all along.
func (d *Datapath) importConnections() error {
	known := flowtable.Frontends{}
	if err := d.tables.Svcs.Each(func(key maps.SvcKey, row maps.Svc) { addOutside(known, key, row) }); err != nil {
		return err
	}
	entries, err := os.ReadDir(d.pins.devs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list links at devices: %w", err)
	}
	switch {
	case len(known) > 0 && len(entries) > 0:
		d.importer.Skip()
	case len(known) > 0 && d.servesDevices():
		d.importer.Import(known)
	}
	return nil
}
