// Package napi measures the cost of a device's packets, separate from all other work of the
// machine.
//
// A device's received packets are usually processed in a softirq, on behalf of whatever happens to
// run: the sender, a neighbor in another namespace, or something unrelated. The kernel does not
// record whose packet it was. But a device can be told to process its packets on its own thread.
// Everything that happens to a packet until the next device has it, XDP, tc, the stack and the
// firewall's rules, is then done on that thread, whose CPU time the kernel counts in nanoseconds.
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

// ErrOldKernel reports that the kernel does not say which thread belongs to a device.
var ErrOldKernel = errors.New("the kernel does not tell the thread of a device (needs Linux 6.8)")

// The kernel's names in its netlink family "netdev".
const (
	commandNAPIGet = 11
	attrIfindex    = 1
	attrPID        = 4
)

// Thread is the thread of a device.
type Thread struct{ pid int }

// Start gives a device of a namespace its own thread. The device must use NAPI, which a veth does
// with GRO on. The thread ends with the device.
func Start(ns *rig.Netns, device string) (*Thread, error) {
	t := &Thread{}
	err := ns.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("find the device: %w", err)
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

// setThreaded writes to the sysfs of the calling thread's namespace through a detached mount: the
// sysfs mounted on /sys shows the devices of the namespace that it was mounted from.
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

// header is the kernel's struct genlmsghdr. The library's own is two bytes too short and sends
// whatever follows in memory, which this family rejects.
type header [4]byte

// Len returns the length of the header.
func (h header) Len() int { return len(h) }

// Serialize returns the header's bytes.
func (h header) Serialize() []byte { return h[:] }

// threadOf returns the PID of the thread of a device in the calling thread's namespace.
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
		return 0, fmt.Errorf("the device has %d queues, want one (a veth has one with GRO on)", len(answers))
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

// Spent returns the CPU time of the thread so far.
func (t *Thread) Spent() (time.Duration, error) {
	// The clock of a process's CPU time, as computed by glibc's clock_getcpuclockid. A kernel
	// thread is a process.
	const scheduled = 2
	var now unix.Timespec
	if err := unix.ClockGettime(int32(^t.pid<<3|scheduled), &now); err != nil {
		return 0, fmt.Errorf("read the CPU time of thread %d: %w", t.pid, err)
	}
	return time.Duration(now.Nano()), nil
}

// Place is a CPU and a priority there. A thread with a place runs before all threads without one,
// and before those with a lower priority.
type Place struct {
	CPU      int
	Priority int // from 1 to 99
}

// Put moves the thread of a device to a place.
func (t *Thread) Put(p Place) error { return p.take(t.pid) }

// Do runs a function on the calling thread in the place.
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

// take moves a thread to the place; zero is the calling thread.
func (p Place) take(tid int) error {
	var cpus unix.CPUSet
	cpus.Set(p.CPU)
	if err := unix.SchedSetaffinity(tid, &cpus); err != nil {
		return fmt.Errorf("move a thread to CPU %d: %w", p.CPU, err)
	}
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: uint32(p.Priority)}
	if err := unix.SchedSetAttr(tid, attr, 0); err != nil {
		return fmt.Errorf("give a thread priority %d: %w", p.Priority, err)
	}
	return nil
}
