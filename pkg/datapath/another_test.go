package datapath

import (
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/devices"
)

// No program forwards packets that a switch floods although they are for another node, whether of
// new or established flows. A device whose hardware address changes is known by the new one.
func TestForAnother(t *testing.T) {
	for _, xdp := range []devices.Mode{devices.Off, devices.Native} {
		t.Run(string(xdp), func(t *testing.T) {
			w := newForwardingNode(t, xdp)
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
				return d.scanAddresses(func(*Local) {})
			})
			if got := w.mac(t, d); got.String() != mac.String() {
				t.Fatalf("the programs know the device by %s, want %s", got, mac)
			}
			w.newCrowd(2).establish(t, 2)
			w.sendTo(t, net.HardwareAddr{2, 0, 0, 0, 0, 7})
			flows := []int{1, 2} // the first is established
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

// mac returns the hardware address by which the programs know the node's first device.
func (w *forwardingNode) mac(t *testing.T, d *Datapath) net.HardwareAddr {
	t.Helper()
	var row bpf.MapsDeviceMac
	w.do(t, func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return d.maps.DeviceMacs.Lookup(uint32(device.Index), &row)
	})
	return row.Mac[:]
}

// sendTo makes clients send their packets for the node to mac.
func (w *forwardingNode) sendTo(t *testing.T, mac net.HardwareAddr) {
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

// wantAnswered makes a client send a packet with the given number and checks that the next answer
// is to that.
func (w *forwardingNode) wantAnswered(t *testing.T, client, number int) {
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
		t.Errorf("the answer is to packet %d of client %d, want packet %d of client %d", of, to, number, client)
	}
}
