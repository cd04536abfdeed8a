package podnet

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/test/rig"
)

// TestFields is the attack of a pod that may load programs into its own network namespace: one at a
// device that it made there hands packets over to the node's end of the pod's device
// (bpf_redirect_peer), where the kernel leaves most fields as the program has set them. None of
// them lets a packet from another's address pass, and what passes has none of them.
func TestFields(t *testing.T) {
	rig.Root(t)
	testFields(t, cni.Veth)
}

func TestNetkitFields(t *testing.T) {
	rig.Root(t)
	needNetkit(t)
	testFields(t, cni.Netkit)
}

// The places of fields in struct __sk_buff.
const (
	skbMark, skbQueue, skbPriority, skbIndex, skbCB, skbClass, skbTime = 8, 12, 32, 44, 48, 72, 152
)

// field is what a pod's program does to its packet before it hands it over.
type field struct {
	what  string
	do    asm.Instructions
	drops bool // a packet from the pod's own address is dropped too
}

func set(at int16, size asm.Size, value int64) asm.Instructions {
	return asm.Instructions{asm.LoadImm(asm.R2, value, asm.DWord), asm.StoreMem(asm.R6, at, asm.R2, size)}
}

func call(fn asm.BuiltinFunc, args ...int64) asm.Instructions {
	list := asm.Instructions{asm.Mov.Reg(asm.R1, asm.R6)}
	for i, arg := range args {
		list = append(list, asm.LoadImm(asm.R2+asm.Register(i), arg, asm.DWord))
	}
	return append(list, fn.Call())
}

func fields() []field {
	list := []field{
		{what: "nothing"},
		{what: "mark of what was delayed", do: set(skbMark, asm.Word, 15<<28)},
		{what: "mark for a proxy", do: set(skbMark, asm.Word, 0xfa1d<<16|15001)},
		{what: "tc_index of what was rewritten", do: set(skbIndex, asm.Word, 0xfa1d)},
		{what: "priority", do: set(skbPriority, asm.Word, 6)},
		{what: "queue", do: set(skbQueue, asm.Word, 3)},
		{what: "cb", do: set(skbCB, asm.Word, 1)},
		{what: "class", do: set(skbClass, asm.Word, 1)},
		{what: "time", do: call(asm.FnSkbSetTstamp, 1<<62, 1)},
		{what: "type", do: call(asm.FnSkbChangeType, 3)},
		{what: "hash", do: call(asm.FnSetHash, 1)},
		{what: "VLAN", do: call(asm.FnSkbVlanPush, 0x0081, 0), drops: true},
		{what: "another protocol", drops: true, do: append(
			asm.Instructions{asm.StoreImm(asm.RFP, -8, 0xdd86, asm.Word), asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 12), asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -8)},
			asm.Mov.Imm(asm.R4, 2), asm.Mov.Imm(asm.R5, 0), asm.FnSkbStoreBytes.Call())},
	}
	for i := range list {
		list[i].do = slices.Concat(asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R0, 0), asm.LoadMem(asm.R2, asm.R6, 16, asm.Word), asm.JNE.Imm(asm.R2, 8, "other"),
		}, list[i].do)
	}
	return list
}

func testFields(t *testing.T, kind cni.Kind) {
	w := newOneNodeOf(t, false, func(s *agentConfig) { s.Kind, s.Rates = kind, map[string]maps.Rates{"b": {Out: slow}} })
	attacker, victim := w.pods[0], w.pods[1]
	seen := w.watchFields(t, attacker)
	for _, f := range fields() {
		t.Run(f.what, func(t *testing.T) {
			hands := attacker.hands(t, f)
			for _, c := range []struct {
				from netip.Addr
				pass bool
			}{{victim.addr[true], false}, {attacker.addr[true], !f.drops}} {
				before := w.dropped(t)
				seen.clear(t)
				hands(t, datagramFrom(c.from, outsiders[true]))
				passed, dropped := seen.read(t), w.dropped(t)-before
				if (passed.packets == 1) != c.pass || (dropped == 1) == c.pass {
					t.Errorf("from %s: %d passed and %d dropped, want it to pass: %t", c.from, passed.packets, dropped, c.pass)
				}
				if rest := passed.fields; rest != [len(rest)]uint32{} {
					t.Errorf("from %s: fields %#x are left", c.from, rest)
				}
			}
		})
	}
}

// datagramFrom returns a datagram of IPv4, without MAC addresses.
func datagramFrom(from, to netip.Addr) []byte {
	frame := append(make([]byte, 12), 8, 0)
	ip := append([]byte{0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0}, from.AsSlice()...)
	ip = append(ip, to.AsSlice()...)
	sum := sumOf(ip)
	ip[10], ip[11] = byte(sum>>8), byte(sum)
	return append(append(frame, ip...), 0, 99, 0, 9, 0, 12, 0, 0, 'h', 'i', '!', '!')
}

// hands makes two devices in the pod, of which one hands over what the other sends, and returns a
// function that sends a frame from there. The node has handled it when the function returns.
func (p *pod) hands(t *testing.T, f field) func(*testing.T, []byte) {
	t.Helper()
	var socket int
	macs := p.macs(t)
	if err := p.Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "in"}, PeerName: "out"}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		for _, name := range []string{"in", "out"} {
			device, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(device); err != nil {
				return err
			}
			if name == "in" {
				err = runAt(device, slices.Concat(f.do, asm.Instructions{
					asm.Mov.Imm(asm.R1, int32(eth0.Attrs().Index)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirectPeer.Call(), asm.Return().WithSymbol("other"),
				}))
			} else {
				socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
				if err == nil {
					err = unix.Bind(socket, &unix.SockaddrLinklayer{Ifindex: device.Attrs().Index})
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Close(socket)
		if err := p.Do(func() error {
			link, err := netlink.LinkByName("in")
			if err != nil {
				return err
			}
			return netlink.LinkDel(link)
		}); err != nil {
			t.Error(err)
		}
	})
	return func(t *testing.T, frame []byte) {
		t.Helper()
		copy(frame, macs)
		if _, err := unix.Write(socket, frame); err != nil {
			t.Fatal(err)
		}
	}
}

// runAt has a device run a program for what it receives, behind those that are there.
func runAt(device netlink.Link, instructions asm.Instructions) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: instructions})
	if err != nil {
		return err
	}
	defer program.Close()
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: device.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(qdisc); err != nil && err != unix.EEXIST {
		return err
	}
	return netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: device.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 100, Handle: 1, Protocol: unix.ETH_P_ALL},
		Fd:          program.FD(), Name: "test", DirectAction: true,
	})
}

// watched is what a program behind fairlead's has seen of a pod's IPv4 packets.
type watched struct{ *ebpf.Map }

type seen struct {
	packets uint32
	fields  [4]uint32
}

func (w *oneNode) watchFields(t *testing.T, p *pod) watched {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 20, MaxEntries: 1})
	w.must(err)
	t.Cleanup(func() { m.Close() })
	list := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1), asm.LoadMem(asm.R2, asm.R6, 16, asm.Word), asm.JNE.Imm(asm.R2, 8, "out"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word), asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(), asm.JEq.Imm(asm.R0, 0, "out"),
	}
	for i, at := range []int16{skbMark, skbPriority, skbIndex, skbQueue} {
		list = append(list, asm.LoadMem(asm.R2, asm.R6, at, asm.Word), asm.StoreMem(asm.R0, int16(4+4*i), asm.R2, asm.Word))
	}
	list = append(list, asm.Mov.Imm(asm.R2, 1), asm.StoreXAdd(asm.R0, asm.R2, asm.Word), asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), asm.Return())
	w.must(w.ns.Do(func() error {
		device, err := netlink.LinkByName(p.device())
		if err != nil {
			return err
		}
		return runAt(device, list)
	}))
	return watched{m}
}

func (w watched) read(t *testing.T) (s seen) {
	t.Helper()
	var row [5]uint32
	if err := w.Lookup(uint32(0), &row); err != nil {
		t.Fatal(err)
	}
	copy(s.fields[:], row[1:])
	s.packets = row[0]
	return s
}

func (w watched) clear(t *testing.T) {
	t.Helper()
	if err := w.Put(uint32(0), &[5]uint32{}); err != nil {
		t.Fatal(err)
	}
}

// dropped returns how many packets were dropped at pods' devices.
func (w *oneNode) dropped(t *testing.T) (packets uint64) {
	t.Helper()
	m, err := maps.Open(datapath.MapsDir(w.Forwarding.BPFFS), true)
	w.must(err)
	defer m.Close()
	list, err := reasons.ReadCounters(m.Counters)
	w.must(err)
	for _, c := range list {
		if c.Hook == "pod" {
			packets += c.Packets
		}
	}
	return packets
}
