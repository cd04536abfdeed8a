package datapath

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
)

// watchFor is how long the programs send events after the last request, and so how long they go on
// if the process that asked is killed.
const watchFor = 10 * time.Second

// Events receives the events that the packet programs send to monitors while somebody asks for
// them. It holds its own references, so it outlives its Datapath and a growth of maps. Only one
// goroutine may call Read; the other methods are safe for concurrent use.
type Events struct {
	watch, watched *ebpf.Map
	reader         *ringbuf.Reader
	since          uint64 // older events were requested by somebody else
	record         ringbuf.Record
}

// Events returns an Events. The caller must close it. The programs send nothing until Want is
// called.
func (d *shared) Events() (*Events, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, fmt.Errorf("open events: %w", ErrNoMaps)
	}
	return NewEvents(d.maps)
}

// NewEvents returns an Events for programs over the given maps, which the caller still owns.
func NewEvents(m *maps.Maps) (e *Events, err error) {
	e = &Events{}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
			e = nil
		}
	}()
	if e.watch, err = m.Watch.Clone(); err != nil {
		return e, fmt.Errorf("duplicate map watch: %w", err)
	}
	if e.watched, err = m.Watched.Clone(); err != nil {
		return e, fmt.Errorf("duplicate map watched: %w", err)
	}
	if e.reader, err = ringbuf.NewReader(m.Events); err != nil {
		return e, fmt.Errorf("read map events: %w", err)
	}
	e.since, err = clockOf(unix.CLOCK_MONOTONIC)
	return e, err
}

func clockOf(id int32) (uint64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(id, &now); err != nil {
		return 0, fmt.Errorf("read the programs' clock: %w", err)
	}
	return uint64(now.Nano()), nil
}

// Want makes the programs send what w asks for, for some seconds from now on. If w asks for no
// reasons they send nothing.
func (e *Events) Want(w maps.Watch) error {
	now, err := clockOf(unix.CLOCK_MONOTONIC_COARSE)
	if err != nil {
		return err
	}
	w.Until = now + uint64(watchFor)
	if err := e.watch.Put(uint32(0), &w); err != nil {
		return fmt.Errorf("write map watch: %w", err)
	}
	return nil
}

// Read waits for the next event. It returns false if there is none before late.
func (e *Events) Read(event *maps.Event, late time.Time) (bool, error) {
	e.reader.SetDeadline(late)
	for {
		err := e.reader.ReadInto(&e.record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read event: %w", err)
		}
		if err := maps.DecodeEvent(e.record.RawSample, event); err != nil {
			return false, err
		}
		if event.At >= e.since {
			return true, nil
		}
	}
}

// Lost returns how many events were lost since the maps were created.
func (e *Events) Lost() (uint64, error) {
	lost := uint64(0)
	for kind := range maps.WatchedKinds {
		var cpus []maps.Watched
		if err := e.watched.Lookup(uint32(kind), &cpus); err != nil {
			return 0, fmt.Errorf("read map watched: %w", err)
		}
		for i := range cpus {
			lost += cpus[i].Lost
		}
	}
	return lost, nil
}

// Close makes the programs send nothing any more, and closes the maps.
func (e *Events) Close() error {
	var errs []error
	if e.reader != nil {
		errs = append(errs, hush(e.watch), e.reader.Close())
	}
	for _, m := range []*ebpf.Map{e.watch, e.watched} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// hush makes the programs send nothing.
func hush(watch *ebpf.Map) error {
	if err := watch.Put(uint32(0), &maps.Watch{}); err != nil {
		return fmt.Errorf("write map watch: %w", err)
	}
	return nil
}
