// Package napi tells what a device's packets cost, apart from all other work of the machine.
//
// What a device receives is taken in a softirq as a rule, on the back of whoever happens to run: of the sender, of a
// neighbour in another namespace, of a stranger. Nothing in the kernel says whose packet it was. But a device can be told
// to take its packets on a thread of its own. All that becomes of a packet until the next device has it, XDP, tc, the
// stack, the rules of a firewall, is then done on that thread, whose CPU time the kernel counts in nanoseconds.
package napi

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// ErrOldKernel says that the kernel does not tell which thread is a device's.
var ErrOldKernel = errors.New("the kernel does not tell the thread of a device (it takes Linux 6.8)")

// The kernel's names in its family "netdev".
const (
	commandNAPIGet = 11
	attrIfindex    = 1
	attrPID        = 4
)

// Thread is the thread of a device.
type Thread struct{ pid int }

// Start gives a device of a namespace its thread. The device takes its packets by NAPI, which a veth does with GRO on.
// The thread ends with the device.
func Start(ns *rig.Netns, device string) (*Thread, error) {
	t := &Thread{}
	err := ns.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("find it: %w", err)
		}
		if err := setThreaded(device); err != nil {
			return err
		}
		t.pid, err = threadOf(link.Attrs().Index)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("give device %s of %s a thread: %w", device, ns, err)
	}
	return t, nil
}

// setThreaded writes to the sysfs of the calling thread's namespace, which is mounted nowhere: what is mounted on /sys
// has the devices of the namespace that it was mounted from.
func setThreaded(device string) error {
	fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open sysfs: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("make sysfs: %w", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	defer unix.Close(root)
	fd, err := unix.Openat(root, "class/net/"+device+"/threaded", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open its switch: %w", err)
	}
	file := os.NewFile(uintptr(fd), "threaded")
	defer file.Close()
	if _, err := file.WriteString("1"); err != nil {
		return fmt.Errorf("set its switch: %w", err)
	}
	return nil
}

// header is the kernel's struct genlmsghdr. The library's own is two bytes short of it and sends what comes next in
// memory, which this family refuses.
type header [4]byte

// Len returns how long it is.
func (h header) Len() int { return len(h) }

// Serialize returns it.
func (h header) Serialize() []byte { return h[:] }

// threadOf returns the thread of a device of the calling thread's namespace.
func threadOf(ifindex int) (pid int, err error) {
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrOldKernel, err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_DUMP)
	request.AddData(header{commandNAPIGet, 1})
	request.AddData(nl.NewRtAttr(attrIfindex, nl.Uint32Attr(uint32(ifindex))))
	answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrOldKernel, err)
	}
	if len(answers) != 1 {
		return 0, fmt.Errorf("it has %d queues, and one is needed (GRO makes a veth have it)", len(answers))
	}
	attrs, err := nl.ParseRouteAttr(answers[0][nl.SizeofGenlmsg:])
	if err != nil {
		return 0, fmt.Errorf("read its queue: %w", err)
	}
	for _, attr := range attrs {
		if attr.Attr.Type == attrPID && len(attr.Value) == 4 {
			return int(nl.NativeEndian().Uint32(attr.Value)), nil
		}
	}
	return 0, ErrOldKernel
}

// Spent returns the CPU time of the thread until now.
func (t *Thread) Spent() (time.Duration, error) {
	// The clock of the CPU time of a process, as glibc's clock_getcpuclockid makes it. A kernel thread is a process.
	const scheduled = 2
	var now unix.Timespec
	if err := unix.ClockGettime(int32(^t.pid<<3|scheduled), &now); err != nil {
		return 0, fmt.Errorf("read the CPU time of thread %d: %w", t.pid, err)
	}
	return time.Duration(now.Nano()), nil
}

// Place is a CPU, and how far in front of others there. A thread with a place runs before all that have none, and before
// those that have a lower one.
type Place struct {
	CPU      int
	Priority int // from 1 to 99
}

// Put puts the thread of a device into a place.
func (t *Thread) Put(p Place) error { return p.take(t.pid) }

// Do runs a function on the calling thread while it has the place.
func (p Place) Do(run func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read the CPUs of the thread: %w", err)
	}
	if err := p.take(0); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0),
			unix.SchedSetaffinity(0, &before))
	}()
	return run()
}

// take puts a thread into the place; zero is the calling one.
func (p Place) take(tid int) error {
	var cpus unix.CPUSet
	cpus.Set(p.CPU)
	if err := unix.SchedSetaffinity(tid, &cpus); err != nil {
		return fmt.Errorf("put a thread on CPU %d: %w", p.CPU, err)
	}
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: uint32(p.Priority)}
	if err := unix.SchedSetAttr(tid, attr, 0); err != nil {
		return fmt.Errorf("give a thread priority %d: %w", p.Priority, err)
	}
	return nil
}
