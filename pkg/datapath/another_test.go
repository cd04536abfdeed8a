package datapath

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/devices"
)

// What a switch floods since it is for another node, nobody else forwards, new flows and others alike. A device that has
// got another hardware address is known by that.
func TestForAnother(t *testing.T) {
	for _, xdp := range []devices.Mode{devices.Off, devices.Native} {
		t.Run(string(xdp), func(t *testing.T) {
			w := newTown(t, xdp)
			d := w.start(t)
			mac := net.HardwareAddr{2, 0, 0, 0, 0, 9}
			w.do(t, func() error {
				device, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				if err := netlink.LinkSetHardwareAddr(device, mac); err != nil {
					return err
				}
				return d.look(func(map[netip.Addr]uint32) {})
			})
			if got := w.mac(t, d); got.String() != mac.String() {
				t.Fatalf("the programs know the device as %s, want %s", got, mac)
			}
			w.newCrowd(2).establish(t, 2)
			w.sendTo(t, net.HardwareAddr{2, 0, 0, 0, 0, 7})
			flows := []int{1, 2} // the first of them is established
			for _, i := range flows {
				if err := w.say(i, 101); err != nil {
					t.Fatal(err)
				}
			}
			w.sendTo(t, mac)
			for _, i := range flows {
				w.wantAnswered(t, i, 102)
			}
		})
	}
}

// mac returns what the programs know the node's first device as.
func (w *town) mac(t *testing.T, d *Datapath) net.HardwareAddr {
	t.Helper()
	var row bpf.MapsLinkAddr
	w.do(t, func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return d.maps.LinkAddrs.Lookup(uint32(device.Index), &row)
	})
	return row.Mac[:]
}

// sendTo makes mac what the clients' packets to the node are sent to.
func (w *town) sendTo(t *testing.T, mac net.HardwareAddr) {
	t.Helper()
	err := w.clients.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: device.Index, IP: w.nodePort.Addr().AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT,
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wantAnswered has a client send a packet with a number, and wants that to be what is answered next.
func (w *town) wantAnswered(t *testing.T, client, number int) {
	t.Helper()
	if err := w.say(client, number); err != nil {
		t.Fatal(err)
	}
	if err := w.socket.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	packet := make([]byte, 64)
	if _, _, err := w.socket.ReadFromUDPAddrPort(packet); err != nil {
		t.Fatal(err)
	}
	if to, of := binary.BigEndian.Uint32(packet), binary.BigEndian.Uint32(packet[4:]); int(to) != client || int(of) != number {
		t.Errorf("packet %d of client %d is answered, want %d of client %d", of, to, number, client)
	}
}
