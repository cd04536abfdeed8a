package datapath

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"text/tabwriter"

	"fairlead.io/fairlead/pkg/devices"
)

// Outside is how clients outside the node reach it.
type Outside struct {
	Idle       bool           `json:"idle,omitempty"` // no frontend is reached from outside, so nothing is attached
	Devices    []DeviceStatus `json:"devices"`
	Missing    []string       `json:"missing,omitempty"` // configured devices that do not exist
	Mended     uint64         `json:"mended,omitempty"`  // programs that were found detached and reattached
	Addr4      netip.Addr     `json:"addr4,omitzero"`    // what backends on other nodes see as the client
	Addr6      netip.Addr     `json:"addr6,omitzero"`
	Tunnel4    netip.Addr     `json:"tunnel4,omitzero"` // what they see if the tunnel leads to them
	Tunnel6    netip.Addr     `json:"tunnel6,omitzero"`
	Unknown    []netip.Addr   `json:"unknownAddresses,omitempty"` // addresses in the Node object that no device has
	SnatPorts  string         `json:"snatPorts"`
	AnyPort    bool           `json:"anySourcePort,omitempty"` // what nodes send through tunnels is taken from any source port
	NotForward []string       `json:"notForwarding,omitempty"` // kernel settings that keep the node from forwarding
}

// outsideStatus returns how clients outside reach this node, or nil if no device is to be served.
func (d *deviceLinks) outsideStatus() *Outside {
	if d.packets.Devices.None() {
		return nil
	}
	s := &Outside{
		Idle: !d.servesDevices(), Devices: []DeviceStatus{}, Missing: d.packets.Devices.Missing(d.outside.found), Mended: d.hooks.Mended(),
		Addr4: d.outside.primary[0], Addr6: d.outside.primary[1], Unknown: d.outside.unknown, SnatPorts: d.packets.SnatPorts.String(), AnyPort: d.packets.AnySourcePort,
	}
	for _, state := range d.hooks.States() {
		s.Devices = append(s.Devices, deviceStatus(&state))
		if state.Tunnel && state.TC != "" {
			s.Tunnel4, s.Tunnel6 = d.outside.tunnel.Addr4, d.outside.tunnel.Addr6
		}
	}
	if s.Idle {
		for _, device := range d.outside.found {
			s.Devices = append(s.Devices, deviceStatus(&devices.State{Device: device}))
		}
	}
	return s
}

func deviceStatus(of *devices.State) DeviceStatus {
	s := DeviceStatus{Name: of.Name, Index: of.Index, Kind: of.Kind, MTU: of.MTU, Why: of.Why, TC: of.TC, XDP: of.XDP, XDPWhy: of.XDPWhy, Tunnel: of.Tunnel}
	if of.Err != nil {
		s.Error = of.Err.Error()
	}
	return s
}

// readLinks reads the states of the devices' links.
func (o *Outside) readLinks() {
	for i := range o.Devices {
		o.Devices[i].Link = linkState(o.Devices[i].Index)
	}
}

// linkState returns what keeps a device from sending and receiving, or "". A device that is gone is
// reported elsewhere.
func linkState(index int) LinkState {
	device, err := net.InterfaceByIndex(index)
	switch {
	case err != nil:
		return ""
	case device.Flags&net.FlagUp == 0:
		return LinkDown
	case device.Flags&net.FlagRunning == 0:
		return NoCarrier
	}
	return ""
}

// DeviceStatus is what is attached to a device by which clients outside come in, or to the tunnel
// to other nodes. TC and XDP are empty if nothing is attached.
type DeviceStatus struct {
	Name   string `json:"name"`
	Index  int    `json:"index"`
	Kind   string `json:"kind"`
	MTU    int    `json:"mtu"`
	Why    string `json:"why"` // why the device was chosen
	TC     string `json:"tc,omitempty"`
	XDP    string `json:"xdp,omitempty"`
	XDPWhy string `json:"xdpWhy,omitempty"` // why there is no XDP, or not the driver's
	Tunnel bool   `json:"tunnel,omitempty"`
	Error  string `json:"error,omitempty"` // what could not be attached
	// Link says what keeps the device from sending and receiving; "" if nothing does.
	Link LinkState `json:"link,omitempty"`
}

// LinkState is what is wrong with a device's link.
type LinkState string

// The states of a link that is of no use.
const (
	LinkDown  LinkState = "down"       // somebody has set it down
	NoCarrier LinkState = "no-carrier" // nothing is at its other end
)

// names returns the devices by which clients outside come in.
func (o *Outside) names() (names []string) {
	for _, d := range o.Devices {
		if !d.Tunnel {
			names = append(names, d.Name)
		}
	}
	return names
}

// tunnel returns the name of the tunnel to other nodes, after a space.
func (o *Outside) tunnel() string {
	for _, d := range o.Devices {
		if d.Tunnel {
			return " " + d.Name
		}
	}
	return ""
}

// both returns the addresses that are valid.
func both(v4, v6 netip.Addr) string {
	var addrs []string
	for _, addr := range []netip.Addr{v4, v6} {
		if addr.IsValid() {
			addrs = append(addrs, addr.String())
		}
	}
	return strings.Join(addrs, " and ")
}

// Text returns the line shown in the status of the node.
func (o *Outside) Text() string {
	text := "no device found"
	if names := o.names(); len(names) > 0 {
		text = strings.Join(names, ", ")
	}
	if o.Idle {
		text += ", once a frontend can be reached from outside"
	}
	if seen := both(o.Addr4, o.Addr6); seen != "" {
		if through := both(o.Tunnel4, o.Tunnel6); through != "" {
			seen += ", or " + through + " through the tunnel" + o.tunnel()
		}
		text += fmt.Sprintf("; other nodes see %s, ports %s", seen, o.SnatPorts)
	}
	if o.AnyPort {
		text += "; takes what other nodes send through tunnels from any source port, see --tunnel-source-ports"
	}
	if o.Mended > 0 {
		text += fmt.Sprintf("; reattached %d times", o.Mended)
	}
	return text
}

// WriteDevices writes a table of what is attached where.
func (o *Outside) WriteDevices(w io.Writer) {
	if o == nil || o.Idle || len(o.Devices) == 0 {
		return
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "DEVICE\tMTU\tTC\tXDP\tWHY")
	for _, d := range o.Devices {
		xdp := d.XDP
		if xdp == "" {
			xdp = "none"
		}
		if d.XDPWhy != "" {
			xdp += ": " + d.XDPWhy
		}
		tc := d.TC
		if tc == "" {
			tc = "none"
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\n", d.Name, d.MTU, tc, xdp, d.Why)
	}
	table.Flush()
}

// Findings says what keeps clients outside from being served. Without a frontend for them, nothing
// does.
func (o *Outside) Findings(say func(format string, args ...any)) {
	if o == nil {
		return
	}
	for _, name := range o.Missing {
		say("There is no device %s, which is in --devices.", name)
	}
	for _, d := range o.Devices {
		switch d.Link {
		case LinkDown:
			say("Device %[1]s is down, so nothing comes in or leaves there. \"ip link set %[1]s up\" sets it up.", d.Name)
		case NoCarrier:
			say("Device %s has no carrier, so nothing comes in or leaves there: see to its cable, the port of its switch, or what is at its other end.", d.Name)
		}
	}
	if o.Idle {
		return
	}
	if len(o.names()) == 0 && len(o.Missing) == 0 {
		say("Clients outside are not served: no device has a default route or an address of the node. Name the devices with --devices.")
	}
	for _, d := range o.Devices {
		if d.Error != "" {
			say("Device %s: %s.", d.Name, d.Error)
		}
	}
	for _, addr := range o.Unknown {
		say("None of the node's devices has its address %s: backends on other nodes see another address.", addr)
	}
	for _, setting := range o.NotForward {
		say("Clients outside cannot reach pods: %[1]s is off. Set it with \"fairlead init\" or \"sysctl -w %[1]s=1\".", setting)
	}
}
