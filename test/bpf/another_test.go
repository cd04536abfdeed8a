package bpf

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// A device in promiscuous mode gets frames for other hosts too, when a switch floods them. The
// programs leave all of them unchanged: the host that they are for handles them.
func TestForAnother(t *testing.T) {
	rig.Root(t)
	for _, h := range hooks() {
		for version, f := range families() {
			t.Run(h.name+" "+version, func(t *testing.T) {
				w := newBareNode(t, h)
				w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
				w.service(t, f.any+":30081", tcp, maps.NodePort, "", false)
				now := w.tick(t, f.client+":4003", f.node+":30080")
				w.setRouteEpoch(t, now-10, now+1000)
				for ifindex, from := range []string{f.client + ":4002", f.client + ":4001"} { // 1 is the device that they come in through
					row := rowOf(f.snat+":61000", f.pod+":8080", false)
					row.Ifindex, row.Dmac, row.Seen = uint32(ifindex), [6]uint8{2, 0, 0, 0, 0, 1}, now-1
					if ifindex == 0 {
						row.Kind = uint8(maps.FlowLocal)
					}
					w.plant(t, w.maps.Ct, flowOf(from, f.node+":30080", tcp), row)
				}
				w.leavesAlone(t, f)
				if err := w.maps.SetDeviceMacs(nil); err != nil {
					t.Fatal(err)
				}
				frame := packet{from: f.client + ":4000", to: f.node + ":30080", proto: tcp, flags: syn}.bytes()
				if verdict, _ := w.run(t, w.in, frame); h.name == "xdp" && verdict != "pass" {
					t.Errorf("a frame from an unknown device: %s, want it left to tc", verdict)
				}
			})
		}
	}
}

// leavesAlone runs frames that the node would forward, translate, refuse and answer, but that are
// for other hosts.
func (w *bareNode) leavesAlone(t *testing.T, f family) {
	t.Helper()
	rows, reasons := w.dump(t), w.reasons(t)
	for what, p := range map[string]packet{
		"of a new flow":             {from: f.client + ":4000", to: f.node + ":30080", proto: tcp, flags: syn},
		"of a flow to another node": {from: f.client + ":4001", to: f.node + ":30080", proto: tcp, flags: ack},
		"of a flow to this node":    {from: f.client + ":4002", to: f.node + ":30080", proto: tcp, flags: ack},
		"that would be refused":     {from: f.client + ":4000", to: f.node + ":30081", proto: tcp, flags: syn},
		"without hops left":         withTTL(packet{from: f.client + ":4001", to: f.node + ":30080", proto: tcp, flags: ack}, 1),
	} {
		for _, dest := range others() {
			frame := p.bytes()
			copy(frame, dest)
			if verdict, after := w.run(t, w.in, frame); verdict != "pass" || !bytes.Equal(frame, after) {
				t.Errorf("a packet %s, to % x: %s, %x, want it as it was, %x", what, dest, verdict, after, frame)
			}
		}
	}
	if diff := cmp.Diff(rows, w.dump(t)); diff != "" {
		t.Errorf("rows of flows (-before +now):\n%s", diff)
	}
	if diff := cmp.Diff(reasons, w.reasons(t)); diff != "" {
		t.Errorf("counters (-before +now):\n%s", diff)
	}
}

// others returns MAC addresses that differ in one byte from loopback's, to which test runs send,
// and multicast and broadcast ones.
func others() [][]byte {
	list := [][]byte{{1, 0, 0x5e, 0, 0, 1}, bytes.Repeat([]byte{255}, 6)}
	for i := range 6 {
		list = append(list, make([]byte, 6))
		list[len(list)-1][i] = 2
	}
	return list
}
