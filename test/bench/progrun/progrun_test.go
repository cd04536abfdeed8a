package progrun

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"fairlead.io/fairlead/test/bench/frames"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

func shape(v6 bool, kind frames.Kind) frames.Shape {
	s := frames.Shape{
		Kind: kind, Source: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddrPort("192.0.2.1:80"),
		Local: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Remote: net.HardwareAddr{2, 0, 0, 0, 0, 2},
	}
	if v6 {
		s.Source, s.To = netip.MustParseAddr("fd00::1"), netip.MustParseAddrPort("[2001:db8::1]:80")
	}
	return s
}

// counter returns a program that counts runs by the source port of TCP or UDP over IPv4, and
// overwrites the packet, so that the next run must write it anew.
func counter(t *testing.T, kind ebpf.ProgramType, work int) (*ebpf.Program, *ebpf.Map) {
	t.Helper()
	ports, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ports.Close() })
	data, end := int16(0), int16(4)
	if kind == ebpf.SchedCLS {
		data, end = 76, 80
	}
	instructions := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, data, asm.Word),
		asm.LoadMem(asm.R3, asm.R1, end, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R6),
		asm.Add.Imm(asm.R4, 64),
		asm.JGT.Reg(asm.R4, asm.R3, "out"),
		asm.LoadMem(asm.R5, asm.R6, 34, asm.Half),
		asm.HostTo(asm.BE, asm.R5, asm.Half),
		asm.StoreMem(asm.RFP, -4, asm.R5, asm.Word),
		asm.StoreImm(asm.R6, 34, 0, asm.Half),
		asm.StoreImm(asm.R6, 26, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, ports.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
	}
	for range work {
		instructions = append(instructions, asm.FnGetPrandomU32.Call())
	}
	instructions = append(instructions, asm.Mov.Imm(asm.R0, 1).WithSymbol("out"), asm.Return())
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, License: "Dual BSD/GPL", Instructions: instructions})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program, ports
}

// The program under test runs equally often for every flow, whatever it does to the packet.
func TestEveryFlowHasItsRuns(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	for _, kind := range []ebpf.ProgramType{ebpf.XDP, ebpf.SchedCLS} {
		for _, flows := range []int{1, 1000} {
			program, ports := counter(t, kind, 0)
			s := shape(false, frames.UDP)
			s.Flows = flows
			result, err := Measure(Config{Program: program, Packets: s, Runs: 5 * flows, Calls: 3})
			if err != nil {
				t.Fatal(err)
			}
			for flow := range flows {
				var have uint64
				if err := ports.Lookup(uint32(s.FlowSource(flow).Port()), &have); err != nil || have != 5*4 {
					t.Fatalf("%s: flow %d had %d runs, want 20 (%v)", kind, flow, have, err)
				}
			}
			if result.Runs != uint64(15*flows) || result.Gross.Min <= 0 || result.Empty.Min <= 0 ||
				result.Gross.Min > result.Gross.Median || result.Empty.Min > result.Empty.Median {
				t.Errorf("%+v", result)
			}
		}
	}
}

// It does not matter for which attach type the program was loaded.
func TestAttachTypes(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	for kind, ways := range map[ebpf.ProgramType][]ebpf.AttachType{
		ebpf.XDP:      {ebpf.AttachNone, ebpf.AttachXDP},
		ebpf.SchedCLS: {ebpf.AttachNone, ebpf.AttachTCXIngress, ebpf.AttachTCXEgress},
	} {
		for _, way := range ways {
			program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
				Type: kind, AttachType: way, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer program.Close()
			if _, err := Measure(Config{Program: program, Packets: shape(false, frames.UDP), Runs: 10, Calls: 1}); err != nil {
				t.Errorf("%s, %s: %v", kind, way, err)
			}
		}
	}
}

// A program that does two hundred times as much takes longer. The test does not ask how much
// longer.
func TestMoreWorkTakesLonger(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	for _, kind := range []ebpf.ProgramType{ebpf.XDP, ebpf.SchedCLS} {
		little, _ := counter(t, kind, 0)
		much, _ := counter(t, kind, 200)
		c := Config{Program: little, Packets: shape(false, frames.UDP), Runs: 5000, Calls: 5}
		short, err := Measure(c)
		if err != nil {
			t.Fatal(err)
		}
		c.Program = much
		long, err := Measure(c)
		if err != nil {
			t.Fatal(err)
		}
		if long.Net.Min <= short.Net.Min {
			t.Errorf("%s: much work takes %v, little %v", kind, long, short)
		}
	}
}

// The check gets the return value and the packet of the last run, for every kind of packet.
func TestCheck(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	for _, v6 := range []bool{false, true} {
		for _, kind := range []frames.Kind{frames.UDP, frames.TCPSyn, frames.TCPAck} {
			program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
				Type: ebpf.XDP, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 3), asm.Return()},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer program.Close()
			want, err := shape(v6, kind).Packet()
			if err != nil {
				t.Fatal(err)
			}
			checked := 0
			_, err = Measure(Config{
				Program: program, Packets: shape(v6, kind), Runs: 10, Calls: 2,
				Check: func(verdict uint32, packet []byte) error {
					if checked++; verdict != 3 || string(packet) != string(want) {
						return fmt.Errorf("verdict %d, packet\n%x, want\n%x", verdict, packet, want)
					}
					return nil
				},
			})
			if err != nil || checked != 3 {
				t.Errorf("%t, %s: checked %d times, %v", v6, kind, checked, err)
			}
		}
	}
	program, _ := counter(t, ebpf.XDP, 0)
	reason := errors.New("the reason")
	refuse := func(uint32, []byte) error { return reason }
	if _, err := Measure(Config{Program: program, Packets: shape(false, frames.UDP), Runs: 10, Check: refuse}); !errors.Is(err, reason) {
		t.Errorf("have error %v", err)
	}
}

// A program that makes packets longer gets every packet at its original length.
func TestLonger(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	const more = 8
	for kind, grow := range map[ebpf.ProgramType]asm.Instructions{
		ebpf.XDP: {asm.Mov.Imm(asm.R2, -more), asm.FnXdpAdjustHead.Call()},
		ebpf.SchedCLS: {
			asm.Mov.Imm(asm.R2, more), asm.Mov.Imm(asm.R3, 1 /* after the link header */), asm.Mov.Imm(asm.R4, 0),
			asm.FnSkbAdjustRoom.Call(),
		},
	} {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, License: "Dual BSD/GPL", Instructions: append(grow, asm.Return())})
		if err != nil {
			t.Fatal(err)
		}
		defer program.Close()
		for _, v6 := range []bool{false, true} {
			first, err := shape(v6, frames.UDP).Packet()
			if err != nil {
				t.Fatal(err)
			}
			_, err = Measure(Config{
				Program: program, Packets: shape(v6, frames.UDP), Runs: 1000, Calls: 3,
				Check: func(verdict uint32, packet []byte) error {
					if verdict != 0 || len(packet) != len(first)+more {
						return fmt.Errorf("verdict %d, %d bytes, want %d", int32(verdict), len(packet), len(first)+more)
					}
					return nil
				},
			})
			if err != nil {
				t.Errorf("%s, IPv6 %t: %v", kind, v6, err)
			}
		}
	}
}

func TestMistakes(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	filter, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SocketFilter, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer filter.Close()
	xdp, _ := counter(t, ebpf.XDP, 0)
	for want, c := range map[string]Config{
		"cannot be measured": {},
		"of type Socket":     {Program: filter, Packets: shape(false, frames.UDP)},
		"no kind":            {Program: xdp, Packets: shape(false, "icmp")},
		"-1 runs cannot":     {Program: xdp, Packets: shape(false, frames.UDP), Runs: -1},
	} {
		if _, err := Measure(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
