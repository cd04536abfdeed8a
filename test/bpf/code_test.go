package bpf

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"
)

// code is a program with its functions. Its jumps go to names instead of offsets, so that
// instructions can be inserted.
type code struct {
	insns   asm.Instructions
	targets []int    // of a jump; -1 for other instructions
	leaders []bool   // it begins a basic block
	starts  []bool   // it begins a function
	before  []regSet // registers that are read later, before each instruction
	behind  []regSet
}

// regSet is a set of registers.
type regSet uint16

const argRegs regSet = 1<<asm.R1 | 1<<asm.R2 | 1<<asm.R3 | 1<<asm.R4 | 1<<asm.R5

func isCall(ins asm.Instruction) bool {
	return ins.OpCode.Class().IsJump() && ins.OpCode.JumpOp() == asm.Call
}

func isExit(ins asm.Instruction) bool {
	return ins.OpCode.Class().IsJump() && ins.OpCode.JumpOp() == asm.Exit
}

// argumentsOf returns how many arguments a helper has; for rarely called ones it returns the
// maximum.
func argumentsOf(helper asm.BuiltinFunc) int {
	switch helper {
	case asm.FnJiffies64, asm.FnKtimeGetCoarseNs:
		return 0
	case asm.FnSkbVlanPop:
		return 1
	case asm.FnMapLookupElem, asm.FnMapDeleteElem, asm.FnRedirect, asm.FnCsumUpdate, asm.FnSkbPullData:
		return 2
	case asm.FnMapUpdateElem, asm.FnFibLookup, asm.FnSkbLoadBytes:
		return 4
	}
	return 5
}

func readCode(insns asm.Instructions) (*code, error) {
	c := &code{insns: slices.Clone(insns)}
	index := map[asm.RawInstructionOffset]int{}
	var at []asm.RawInstructionOffset
	for iter := c.insns.Iterate(); iter.Next(); {
		index[iter.Offset] = iter.Index
		at = append(at, iter.Offset)
	}
	c.targets, c.leaders = make([]int, len(insns)), make([]bool, len(insns)+1)
	c.starts = make([]bool, len(insns))
	for i, ins := range c.insns {
		c.targets[i] = -1
		c.starts[i] = ins.Symbol() != ""
		c.leaders[i] = c.leaders[i] || c.starts[i]
		if !ins.OpCode.Class().IsJump() || isCall(ins) {
			continue
		}
		c.leaders[i+1] = true
		if isExit(ins) {
			continue
		}
		target, ok := index[at[i]+1+asm.RawInstructionOffset(ins.Offset)] // modulo 2^64, because it is unsigned
		if !ok || ins.Reference() != "" {
			return nil, fmt.Errorf("%v jumps to nowhere", ins)
		}
		c.targets[i], c.leaders[target] = target, true
	}
	for i, target := range c.targets {
		if target < 0 {
			continue
		}
		if c.insns[target].Symbol() == "" {
			c.insns[target] = c.insns[target].WithSymbol(fmt.Sprintf("%s+%d", insns.Name(), target))
		}
		c.insns[i].Offset = -1
		c.insns[i] = c.insns[i].WithReference(c.insns[target].Symbol())
	}
	c.findLive()
	return c, nil
}

// blocks returns the bounds of the basic blocks.
func (c *code) blocks() (list [][2]int) {
	for i := range c.insns {
		if c.leaders[i] {
			list = append(list, [2]int{i, i + 1})
		} else {
			list[len(list)-1][1] = i + 1
		}
	}
	return list
}

// place returns an instruction of a block after which registers are free, and which ones; otherwise
// an instruction with only one successor.
func (c *code) place(block [2]int) (at int, free []asm.Register) {
	for at = block[0]; at < block[1] && c.targets[at] < 0 && !isExit(c.insns[at]); at++ {
		if free = freeIn(c.behind[at]); len(free) >= 2 {
			return at, free
		}
	}
	return -1, nil
}

// depth returns how deep into the stack the function of an instruction reaches.
func (c *code) depth(at int) (depth int16) {
	for !c.starts[at] {
		at--
	}
	for i := at; i == at || i < len(c.insns) && !c.starts[i]; i++ {
		ins := c.insns[i]
		class := ins.OpCode.Class()
		switch {
		case class.IsStore() && ins.Dst == asm.RFP, class.IsLoad() && ins.Src == asm.RFP:
			depth = min(depth, ins.Offset&^7)
		case class.IsALU() && ins.OpCode.ALUOp() == asm.Add && ins.Constant < 0 && ins.Constant > -512:
			depth = min(depth, int16(ins.Constant)&^7) // possibly of an address
		}
	}
	return depth
}

func freeIn(live regSet) (free []asm.Register) {
	for r := asm.R0; r <= asm.R9; r++ {
		if live&(1<<r) == 0 {
			free = append(free, r)
		}
	}
	return free
}

// findLive iterates until nothing changes.
func (c *code) findLive() {
	before, behind := make([]regSet, len(c.insns)+1), make([]regSet, len(c.insns))
	c.before, c.behind = before, behind
	functions := map[string]int{}
	for i, ins := range c.insns {
		functions[ins.Symbol()] = i
	}
	for changed := true; changed; {
		changed = false
		for i := len(c.insns) - 1; i >= 0; i-- {
			ins := c.insns[i]
			var live regSet
			if !isExit(ins) && !(c.targets[i] >= 0 && ins.OpCode.JumpOp() == asm.Ja) {
				live = before[i+1]
			}
			if c.targets[i] >= 0 {
				live |= before[c.targets[i]]
			}
			behind[i] = live
			reads, writes := usesOf(ins)
			if ins.IsFunctionCall() {
				reads = before[functions[ins.Reference()]] & argRegs
			}
			if live = live&^writes | reads; live != before[i] {
				before[i], changed = live, true
			}
		}
	}
}

// usesOf returns the registers that an instruction reads and those that it overwrites. It may
// report too many reads and too few writes.
func usesOf(ins asm.Instruction) (reads, writes regSet) {
	dst, src := regSet(1)<<ins.Dst, regSet(1)<<ins.Src
	switch class := ins.OpCode.Class(); {
	case isCall(ins):
		return (1<<argumentsOf(asm.BuiltinFunc(ins.Constant)) - 1) << asm.R1, argRegs | 1<<asm.R0
	case isExit(ins):
		return 1 << asm.R0, 0
	case class.IsJump():
		return dst | src, 0
	case class.IsALU() && (ins.OpCode.ALUOp() == asm.Mov):
		if ins.OpCode.Source() == asm.ImmSource {
			return 0, dst
		}
		return src, dst
	case class.IsALU(), class.IsStore():
		return dst | src | 1<<asm.R0, 0 // R0 for compare-and-exchange
	case ins.OpCode.IsDWordLoad():
		return 0, dst
	}
	return src, dst
}

// callName returns the name of a helper call; map helpers include the map's name.
func (c *code) callName(call int) string {
	name := strings.TrimPrefix(asm.BuiltinFunc(c.insns[call].Constant).String(), "Fn")
	kind, ok := strings.CutPrefix(name, "Map")
	if !ok {
		return name
	}
	found := map[string]bool{}
	c.findMaps(call, asm.R1, map[[2]int]bool{}, found)
	return strings.ToLower(strings.TrimSuffix(kind, "Elem")) + " " + strings.Join(slices.Sorted(maps.Keys(found)), "/")
}

// findMaps follows all paths to an instruction backwards, for the maps that may be in a register
// before it.
func (c *code) findMaps(at int, in asm.Register, been map[[2]int]bool, found map[string]bool) {
	if been[[2]int{at, int(in)}] {
		return
	}
	been[[2]int{at, int(in)}] = true
	for _, i := range c.previous(at) {
		ins, of := c.insns[i], in
		switch _, writes := usesOf(ins); {
		case writes&(1<<in) == 0:
		case ins.IsLoadFromMap():
			found[ins.Reference()] = true
			continue
		case ins.OpCode.Class().IsALU() && ins.OpCode.ALUOp() == asm.Mov && ins.OpCode.Source() == asm.RegSource:
			of = ins.Src
		default:
			found["a map"] = true
			continue
		}
		c.findMaps(i, of, been, found)
	}
}

// previous returns the instructions that may precede an instruction.
func (c *code) previous(at int) (list []int) {
	if at > 0 && !c.starts[at] && !isExit(c.insns[at-1]) && (c.targets[at-1] < 0 || c.insns[at-1].OpCode.JumpOp() != asm.Ja) {
		list = append(list, at-1)
	}
	if c.leaders[at] {
		for i, target := range c.targets {
			if target == at {
				list = append(list, i)
			}
		}
	}
	return list
}
