package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/devices"
)

// devices returns a line for each device through which clients outside come in.
func (n *Node) devices(found []devices.Device, err error) []Line {
	const check = "devices"
	switch {
	case n.Options.NoDevices:
		return []Line{{check, OK, "none to serve (--devices=none)", ""}}
	case err != nil:
		return []Line{unknown(check, err)}
	case len(found) == 0:
		return []Line{{check, Warn, "none leads outside: clients there are not served", "name the devices that do in --devices"}}
	}
	var lines []Line
	for i := range found {
		lines = append(lines, n.device(&found[i]))
	}
	return lines
}

func (n *Node) device(d *devices.Device) Line {
	driver := n.link("sys/class/net/" + d.Name + "/device/driver")
	if driver == "" {
		driver = d.Kind
	}
	queues, cpus := n.queues(d.Name), n.cpus()
	l := Line{Check: "device " + d.Name, State: OK}
	say := func(text string) { l.Found += text }
	say(fmt.Sprintf("%s (%s), receive queues: %d, ", driver, d.Why, queues))
	help := func(state State, cure string) {
		if l.State == OK || l.State == Unknown {
			l.State, l.Cure = state, cure
		}
	}
	if why := n.Options.XDP.Without(d); why != "" {
		say("no XDP: " + why)
	} else if n.Options.XDP == devices.Generic {
		say("generic XDP, as requested")
		help(Warn, "use --xdp=auto: generic XDP costs more than tc")
	} else {
		offered, err := n.XDP(d.Index)
		switch {
		case errors.Is(err, devices.ErrNoXDPInfo):
			say("whether the driver has native XDP will show when the agent attaches it")
		case err != nil:
			say("it is not known whether the driver has native XDP: " + err.Error())
			help(Unknown, howToLearn(err))
		case offered:
			say("native XDP")
		case n.Options.XDP == devices.Native:
			say("the driver has no native XDP")
			help(Fail, "use --xdp=auto, which uses native XDP only where it exists")
		default:
			say("no XDP: the driver has no native XDP; the programs at tc do all the work")
		}
	}
	if queues == 1 && cpus > 1 && d.Kind == "device" {
		say(fmt.Sprintf("; one of %d processors handles all packets", cpus))
		help(Warn, "use more queues (ethtool -L "+d.Name+" combined N), or, if the device has only one, receive packet steering (queues/rx-0/rps_cpus)")
	}
	return l
}

func (n *Node) queues(device string) (count int) {
	names, _ := n.list("sys/class/net/" + device + "/queues") // a device that is gone has none
	for _, name := range names {
		if strings.HasPrefix(name, "rx-") {
			count++
		}
	}
	return count
}

func (n *Node) cpus() (count int) {
	names, _ := n.list("sys/devices/system/cpu")
	for _, name := range names {
		if number, ok := strings.CutPrefix(name, "cpu"); ok && number != "" && strings.Trim(number, "0123456789") == "" {
			count++
		}
	}
	return count
}

// mtu compares the MTUs of the devices: a packet from the one with the larger MTU may not fit the
// others.
func (n *Node) mtu(found []devices.Device) Line {
	const check, leastOfIPv6 = "mtu", 1280
	if len(found) == 0 {
		return Line{check, OK, "no device to serve", ""}
	}
	var sizes []string
	small, differ := false, false
	for _, d := range found {
		sizes = append(sizes, fmt.Sprintf("%s %d", d.Name, d.MTU))
		small = small || d.MTU < leastOfIPv6
		differ = differ || d.MTU != found[0].MTU
	}
	switch text := strings.Join(sizes, ", "); {
	case small:
		return Line{check, Warn, text + ": IPv6 needs at least 1280", "raise the smaller one, if its network carries that"}
	case differ:
		return Line{check, Warn, text + ": they differ, so packets between them may not fit", "give all of them the MTU that every path between nodes carries"}
	default:
		return Line{check, OK, text, ""}
	}
}

// interrupts checks whether one processor gets the interrupts of several queues.
func (n *Node) interrupts(found []devices.Device) Line {
	const check = "interrupts"
	var spread, heaped []string
	for _, d := range found {
		irqs, err := n.list("sys/class/net/" + d.Name + "/device/msi_irqs")
		if err == nil && len(irqs) == 0 { // those of virtio belong to the parent
			irqs, err = n.list("sys/class/net/" + d.Name + "/device/../msi_irqs")
		}
		if err != nil {
			return unknown(check, err)
		}
		var at []string
		for _, irq := range irqs {
			cpus, err := n.read("proc/irq/" + irq + "/effective_affinity_list")
			if errors.Is(err, fs.ErrNotExist) {
				cpus, err = n.read("proc/irq/" + irq + "/smp_affinity_list")
			}
			if err != nil {
				return unknown(check, err)
			}
			if cpus != "" {
				at = append(at, cpus)
			}
		}
		if len(at) == 0 || n.queues(d.Name) < 2 {
			continue
		}
		slices.Sort(at)
		text := fmt.Sprintf("%s: %d on processors %s", d.Name, len(at), strings.Join(slices.Compact(slices.Clone(at)), " "))
		if at[0] == at[len(at)-1] && n.cpus() > 1 && !strings.ContainsAny(at[0], ",-") {
			heaped = append(heaped, text)
		} else {
			spread = append(spread, text)
		}
	}
	switch {
	case len(heaped) > 0:
		return Line{check, Warn, strings.Join(heaped, "; "), "spread them over the processors (/proc/irq/N/smp_affinity_list)"}
	case len(spread) > 0:
		return Line{check, OK, strings.Join(spread, "; "), ""}
	}
	return Line{check, OK, "no device has several queues with their own interrupts", ""}
}
