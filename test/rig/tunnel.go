package rig

import (
	"encoding/binary"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// The layout of struct bpf_tunnel_key, and of the control buffer in struct __sk_buff.
const (
	tunnelKeySize  = 44
	tunnelKeyLocal = 28 // as a sender's key; the kernel gives it back as a receiver's remote address
	controlBuffer  = 48
	controlWords   = 5
)

// TunnelFailed is what the program below returns if it cannot do its work.
const TunnelFailed = 99

// OutOfTunnel returns a tc program for test runs that continues with another as if the packet had come
// out of a tunnel, from the address in its context (see TunnelContext).
func OutOfTunnel(t T, next *ebpf.Program) *ebpf.Program {
	t.Helper()
	programs, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { programs.Close() })
	if err := programs.Put(uint32(0), next); err != nil {
		t.Fatalf("%v", err)
	}
	insns := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	for at := int16(-tunnelKeySize); at < 0; at += 4 {
		insns = append(insns, asm.StoreImm(asm.RFP, at, 0, asm.Word))
	}
	for word := range int16(4) {
		insns = append(insns, asm.LoadMem(asm.R0, asm.R6, controlBuffer+4*word, asm.Word),
			asm.StoreMem(asm.RFP, tunnelKeyLocal-tunnelKeySize+4*word, asm.R0, asm.Word))
	}
	insns = append(insns, asm.LoadMem(asm.R4, asm.R6, controlBuffer+4*4, asm.Word), asm.Mov.Imm(asm.R0, 0))
	for word := range int16(controlWords) {
		insns = append(insns, asm.StoreMem(asm.R6, controlBuffer+4*word, asm.R0, asm.Word))
	}
	insns = append(insns, asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -tunnelKeySize),
		asm.Mov.Imm(asm.R3, tunnelKeySize), asm.FnSkbSetTunnelKey.Call(),
		asm.JNE.Imm(asm.R0, 0, "failed"),
		asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMapPtr(asm.R2, programs.FD()), asm.Mov.Imm(asm.R3, 0), asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, TunnelFailed).WithSymbol("failed"), asm.Return())
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: insns})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { program.Close() })
	return program
}

// TunnelContext returns the context of a packet that comes by a device from a sender.
func TunnelContext(ifindex uint32, sender netip.Addr) []uint32 {
	context := make([]uint32, controlBuffer/4+controlWords)
	context[10] = ifindex
	words := context[controlBuffer/4:]
	if sender.Is4() {
		words[0] = binary.BigEndian.Uint32(sender.AsSlice()) // in the order of the host, see bpf_skb_set_tunnel_key
		return context
	}
	for i := range 4 {
		words[i] = binary.NativeEndian.Uint32(sender.AsSlice()[4*i:])
	}
	words[4] = 1 // BPF_F_TUNINFO_IPV6
	return context
}
