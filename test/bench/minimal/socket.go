package minimal

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"fairlead.io/fairlead/test/bench/minimal/limited"
	"fairlead.io/fairlead/test/rig"
)

// Socket makes sockets that dial a frontend reach its backend.
type Socket struct {
	Pairs     []Pair // at most one of each family
	PeerName  bool   // sockets report the frontend as their peer
	Datagrams bool   // also for unconnected UDP sockets, which then see answers from the frontend
}

// AttachSocket attaches the programs to a cgroup.
func AttachSocket(cgroup *rig.Cgroup, s Socket) (*Attached, error) {
	spec, err := loadSock()
	if err != nil {
		return nil, fmt.Errorf("read socket programs: %w", err)
	}
	for _, pair := range s.Pairs {
		if err := pair.check(); err != nil {
			return nil, err
		}
		name := "pair6"
		if pair.Frontend.Addr().Is4() {
			name = "pair4"
		}
		var row sockPair
		row.Frontend.Addr, row.Frontend.Port = words(pair.Frontend.Addr()), uint32(order16(pair.Frontend.Port()))
		row.Backend.Addr, row.Backend.Port = words(pair.Backend.Addr()), uint32(order16(pair.Backend.Port()))
		if err := spec.Variables[name].Set(row); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	attached := &Attached{}
	if err := limited.Do(func() error { return s.attach(attached, spec, cgroup) }); err != nil {
		_ = attached.Close() // the first error matters
		return nil, err
	}
	return attached, nil
}

// attach attaches only the requested hooks, since the mere presence of a hook costs time.
func (s Socket) attach(attached *Attached, spec *ebpf.CollectionSpec, cgroup *rig.Cgroup) error {
	var objects sockObjects
	if err := spec.LoadAndAssign(&objects, nil); err != nil {
		return fmt.Errorf("load socket programs: %w", err)
	}
	attached.own(&objects)
	for _, hook := range []struct {
		program *ebpf.Program
		kind    ebpf.AttachType
		wanted  bool
	}{
		{objects.SockConnect4, ebpf.AttachCGroupInet4Connect, true},
		{objects.SockConnect6, ebpf.AttachCGroupInet6Connect, true},
		{objects.SockPeername4, ebpf.AttachCgroupInet4GetPeername, s.PeerName},
		{objects.SockPeername6, ebpf.AttachCgroupInet6GetPeername, s.PeerName},
		{objects.SockSendmsg4, ebpf.AttachCGroupUDP4Sendmsg, s.Datagrams},
		{objects.SockSendmsg6, ebpf.AttachCGroupUDP6Sendmsg, s.Datagrams},
		{objects.SockRecvmsg4, ebpf.AttachCGroupUDP4Recvmsg, s.Datagrams},
		{objects.SockRecvmsg6, ebpf.AttachCGroupUDP6Recvmsg, s.Datagrams},
	} {
		if !hook.wanted {
			continue
		}
		l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup.Path(), Attach: hook.kind, Program: hook.program})
		if err != nil {
			return fmt.Errorf("attach %s: %w", hook.program, err)
		}
		attached.own(l)
	}
	return nil
}
