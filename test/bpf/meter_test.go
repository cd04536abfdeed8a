package bpf

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// meter is a copy of a hook's programs that counts what it executes as it runs: the instructions as
// compiled, and each helper call. Before a copy is loaded, counting code is inserted into every
// basic block, where two registers are not live.
type meter struct {
	counts *ebpf.Map
	points []string // what is counted at each place; the first counts instructions
}

// meterRoom is how many helper calls the programs of one object may have.
const meterRoom = 4096

func (w *bareNode) meter(t *testing.T) *meter {
	t.Helper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8 * meterRoom, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { counts.Close() })
	m := &meter{counts: counts, points: []string{"instructions"}}
	load := w.hook.load
	defer func() { w.hook.load = load }()
	w.hook.load = func() (*ebpf.CollectionSpec, error) {
		spec, err := load()
		if err != nil {
			return nil, err
		}
		for _, program := range spec.Programs {
			if program.Instructions, err = m.equip(program.Instructions); err != nil {
				return nil, fmt.Errorf("%s: %w", program.Name, err)
			}
		}
		return spec, nil
	}
	w.reload(t, w.hook)
	return m
}

// reset sets every count to zero.
func (m *meter) reset(t *testing.T) {
	t.Helper()
	if err := m.counts.Put(uint32(0), make([]byte, 8*meterRoom)); err != nil {
		t.Fatal(err)
	}
}

// read returns how many instructions were executed, and how often each helper was called, in order.
func (m *meter) read(t *testing.T) (instructions uint64, calls string) {
	t.Helper()
	have := make([]uint64, meterRoom)
	if err := m.counts.Lookup(uint32(0), &have); err != nil {
		t.Fatal(err)
	}
	sums := map[string]uint64{}
	for i, point := range m.points[1:] {
		sums[point] += have[i+1]
	}
	var list []string
	for point, n := range sums {
		switch {
		case n == 1:
			list = append(list, point)
		case n > 1:
			list = append(list, fmt.Sprintf("%d %s", n, point))
		}
	}
	slices.SortFunc(list, func(a, b string) int {
		return strings.Compare(strings.TrimLeft(a, "0123456789 "), strings.TrimLeft(b, "0123456789 "))
	})
	return have[0], strings.Join(list, ", ")
}

// equip returns the instructions with counting code.
func (m *meter) equip(insns asm.Instructions) (asm.Instructions, error) {
	code, err := readCode(insns)
	if err != nil {
		return nil, err
	}
	after := map[int]asm.Instructions{} // inserted after an instruction
	for i, ins := range code.insns {
		if ins.IsBuiltinCall() {
			if len(m.points) == meterRoom {
				return nil, fmt.Errorf("there are more than %d calls", meterRoom)
			}
			m.points = append(m.points, code.callName(i))
			after[i] = m.add(len(m.points)-1, 1, []asm.Register{asm.R1, asm.R2})
		}
	}
	var out asm.Instructions
	ahead := map[int]asm.Instructions{}
	for _, block := range code.blocks() {
		m.equipBlock(code, block, ahead, after)
	}
	for i, ins := range code.insns {
		if more := ahead[i]; len(more) > 0 { // jumps and calls lead to it now
			more[0] = btf.WithFuncMetadata(more[0].WithSymbol(ins.Symbol()).WithSource(ins.Source()), btf.FuncMetadata(&ins))
			ins = btf.WithFuncMetadata(ins.WithSymbol(""), nil)
			out = append(out, more...)
		}
		out = append(append(out, ins), after[i]...)
	}
	return out, nil
}

// equipBlock counts a block where two registers are free. Where they never are, it saves two
// registers on the stack meanwhile.
func (m *meter) equipBlock(c *code, block [2]int, ahead, after map[int]asm.Instructions) {
	first, n := block[0], block[1]-block[0]
	if at, free := c.place(block); at >= 0 {
		after[at] = append(after[at], m.add(0, n, free)...)
		return
	}
	var borrow, giveBack asm.Instructions
	free, room := freeIn(c.before[first]), c.depth(first)
	for lent := asm.R9; len(free) < 2; lent-- {
		if !slices.Contains(free, lent) {
			free = append(free, lent)
			room -= 8
			borrow = append(borrow, asm.StoreMem(asm.RFP, room, lent, asm.DWord))
			giveBack = append(giveBack, asm.LoadMem(lent, asm.RFP, room, asm.DWord))
		}
	}
	ahead[first] = slices.Concat(borrow, m.add(0, n, free), giveBack)
}

// add returns code that adds n to a count.
func (m *meter) add(point, n int, free []asm.Register) asm.Instructions {
	pointer, value := free[0], free[1]
	return asm.Instructions{
		asm.LoadMapValue(pointer, m.counts.FD(), uint32(8*point)),
		asm.LoadMem(value, pointer, 0, asm.DWord),
		asm.Add.Imm(value, int32(n)),
		asm.StoreMem(pointer, 0, value, asm.DWord),
	}
}
