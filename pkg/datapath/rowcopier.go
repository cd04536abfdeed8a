package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// copyTries is how often to retry rows that could not be carried over.
const copyTries = 3

// rowCopier copies rows of established flows to a larger map, with a program that checks both maps
// again right after each copy.
type rowCopier struct {
	progs *ebpf.Collection
	list  *maps.Array[maps.CopyItem]
	count *maps.Array[uint64]

	done, torn, failed int
}

// copyRows copies all rows of old to next, while programs look into both and insert only into next.
// Rows that next already has stay as they are.
func copyRows(old, next *ebpf.Map) (err error) {
	c, err := newRowCopier(old, next)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	var buffer maps.FlowBuffer
	for tries := 0; ; {
		c.done, c.torn, c.failed = 0, 0, 0
		err := maps.EachFlow(old, &buffer, func(keys []maps.Flow, _ []maps.FlowRow) error { return c.copyBatch(keys) })
		if err != nil {
			return err
		}
		// A program that found a flow in the old map may have deleted it from the new one, so
		// repeat until a pass copies nothing.
		if c.done == 0 && c.failed == 0 && (c.torn == 0 || tries >= copyTries) {
			return nil
		}
		if tries++; c.failed > 0 && tries >= copyTries {
			return fmt.Errorf("carry over flows: cannot insert %d rows into the larger map of %d: the kernel may be short of memory",
				c.failed, next.MaxEntries())
		}
	}
}

func newRowCopier(old, next *ebpf.Map) (c *rowCopier, err error) {
	c = &rowCopier{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	spec, err := bpf.LoadCarry()
	if err != nil {
		return c, fmt.Errorf("read program specs: %w", err)
	}
	over := map[string]*ebpf.Map{}
	(&table{next: next}).replace(old, spec, over)
	if c.progs, err = bpf.NewCollection(spec, over); err != nil {
		return c, err
	}
	if c.list, err = maps.MapArray[maps.CopyItem](c.progs.Maps[bpf.CarryMapCarried], true); err != nil {
		return c, err
	}
	c.count, err = maps.MapArray[uint64](c.progs.Maps[bpf.CarryMapCarryCount], true)
	return c, err
}

func (c *rowCopier) copyBatch(keys []maps.Flow) error {
	list := c.list.Rows()
	for len(keys) > 0 {
		n := min(len(keys), len(list))
		for i := range n {
			list[i] = maps.CopyItem{Flow: keys[i]}
		}
		c.count.Rows()[0] = uint64(n)
		if _, err := c.progs.Programs[bpf.CarryProgCarryFlows].Run(&ebpf.RunOptions{}); err != nil {
			return fmt.Errorf("carry over flows: %w", err)
		}
		for i := range n {
			switch list[i].Outcome {
			case maps.CopyDone:
				c.done++
			case maps.CopyTorn:
				c.torn++
			case maps.CopyFailed:
				c.failed++
			}
		}
		keys = keys[n:]
	}
	return nil
}

func (c *rowCopier) close() error {
	var errs []error
	if c.list != nil {
		errs = append(errs, c.list.Close())
	}
	if c.count != nil {
		errs = append(errs, c.count.Close())
	}
	if c.progs != nil {
		c.progs.Close()
	}
	return errors.Join(errs...)
}
