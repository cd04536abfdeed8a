package datapath

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
)

// hookSet is some of the groups of programs that are not always needed.
type hookSet uint8

const (
	datagramHooks  hookSet = 1 << iota // sendmsg and recvmsg, for frontends of UDP
	bindHooks                          // bind, for NodePorts
	packetHooks                        // the programs at devices, for frontends that are reached from outside
	congestionHook                     // at connections, where pods may have another congestion control

	allHooks = datagramHooks | bindHooks | packetHooks
)

// hooksOf returns the group of a program; 0 for one that is always needed.
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

// hooksFor returns what a frontend needs.
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

// Prepare attaches the programs that these frontends need and none has needed before. It is to be called before the rows
// are in the map. What the stack translates for them until then stays the stack's, see former. After an error what is
// attached is as it was. What is attached stays so until another process starts.
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
	d.former.keep(d, known)
	return nil
}

// lacks reports whether there is anything to do for frontends. Mostly there is not, and then nobody has to wait for those who
// change what is attached.
func (d *Datapath) lacks(need hookSet, known frontends) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return need&^d.needs != 0 || !d.former.kept && len(known) > 0
}

// addNeeded adds to what is needed what the frontends in the maps ask for.
func (d *Datapath) addNeeded() error {
	if d.needs&allHooks == allHooks {
		return nil
	}
	return d.tables.Svcs.Each(func(key maps.SvcKey, row maps.Svc) { d.needs |= hooksFor(key, row) })
}
