package podnet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// limitsShares checks that pods that share a rate keep to it together, and that a share within
// another one keeps to that too.
func (w *oneNode) limitsShares(t *testing.T) {
	for _, c := range []struct {
		name  string
		share maps.Share
		rate  float64
	}{
		{"of a namespace", maps.Share{Namespace: "shop", OfNamespace: 2e6 / 8}, 2e6 / 8},
		{"of a namespace, within the node's", maps.Share{Namespace: "shop", OfNamespace: 2e6 / 8, OfNode: 1e6 / 8}, 1e6 / 8},
	} {
		shared := maps.Rates{Share: c.share, Class: maps.Guaranteed} // so most of it waits
		w.rerate(map[string]maps.Rates{"a": shared, "b": shared})
		for is4, to := range outsiders {
			want, all := leaves(c.rate, is4)
			sink := drainAt(t, w.outside, 9, 2*(all/2/datagrams*datagrams))
			for _, p := range w.pods[:2] {
				rig.NewChild(t, nil, p.Netns, "pour", netip.AddrPortFrom(to, 9).String(), "4", strconv.Itoa(all/2/datagrams*datagrams), "0")
			}
			requireRate(t, fmt.Sprintf("%.0f Mbit/s, share %s, IPv4 %t", c.rate*8/1e6, c.name, is4), drained(t, sink), want, 0.03)
		}
		m, err := maps.Open(datapath.MapsDir(w.Forwarding.BPFFS), true)
		w.must(err)
		list, err := maps.SharePaces(m.ShareRates, m.SharePaces)
		m.Close()
		w.must(err)
		for id, pace := range list {
			if pace.Passed == 0 || pace.Dropped != 0 {
				t.Errorf("share %s, %d: %+v", c.name, id, pace)
			}
		}
	}
}

// prefersClass checks that a pod of a higher class gets nearly all of a shared rate while it needs
// all of it.
func (w *oneNode) prefersClass(t *testing.T) {
	const own, all = uint64(1e9 / 8), 150 * datagrams // more than the share lets wait
	share := maps.Share{OfNode: 2e6 / 8}
	w.rerate(map[string]maps.Rates{"a": {Out: own, Class: maps.Guaranteed, Share: share}, "b": {Out: 2 * own, Class: maps.BestEffort, Share: share}})
	for _, to := range outsiders {
		sink := drainAt(t, w.outside, 9, 2*all)
		var pours []*rig.Process
		for _, p := range w.pods[:2] {
			pours = append(pours, rig.NewChild(t, nil, p.Netns, "pour", netip.AddrPortFrom(to, 9).String(), "4", strconv.Itoa(all), "0"))
		}
		for _, p := range pours {
			w.must(p.Wait())
		}
		w.until("nothing waits any more", func() bool {
			return !slices.ContainsFunc(w.queued("eth0"), func(q netlink.Qdisc) bool { return q.Attrs().Statistics.Queue.Qlen > 0 })
		})
		sink.Kill() // it waits for what was dropped
	}
	m, err := maps.Open(datapath.MapsDir(w.Forwarding.BPFFS), true)
	w.must(err)
	defer m.Close()
	list, err := maps.Paces(m.PodRates, m.PodPaces)
	w.must(err)
	of := map[uint64]maps.Pace{}
	for _, pace := range list {
		of[pace.Out.Rate] = *pace.Out
	}
	if a, b := of[own], of[2*own]; a.Passed < 9*b.Passed || a.Passed == 0 || b.Dropped == 0 {
		t.Errorf("guaranteed: %+v, best effort: %+v", a, b)
	}
}

// preferBands checks that what waits at a device waits in the band of its pod's class, if this
// kernel's fq has bands. One family is enough for each way: IPv4 through the stack, where forwarding
// may reset the priority of IPv4 packets, and IPv6 past it.
func (w *oneNode) preferBands(t *testing.T, to netip.Addr) {
	w.sets(t, w.ns, "net/ipv4/ip_forward_update_priority", "0")
	for band, p := range map[int]*pod{0: w.pods[0], 2: w.pods[1]} {
		waiting, ok := w.pouredBands(t, p, to, float64(w.Rates[p.id].Out))
		if !ok {
			t.Log("this kernel's fq has no bands: Linux 6.7 has them")
			return
		}
		in := waiting[band]
		waiting[band] = 0
		if in == 0 || waiting != [3]uint32{} {
			t.Errorf("%s: %d wait in band %d, and in the others %v", p.id, in, band, waiting)
		}
	}
}

// inClass returns the rates of a pod of a class.
func inClass(class maps.Class) maps.Rates { return maps.Rates{Out: 1e6 / 8, Class: class} }

// pouredBands has a pod send a second's worth of datagrams, and returns how many wait in which
// band.
func (w *oneNode) pouredBands(t *testing.T, p *pod, to netip.Addr, rate float64) (waiting [3]uint32, ok bool) {
	t.Helper()
	_, all := leaves(rate, to.Is4())
	for range 5 {
		sink, since := drainAt(t, w.outside, 9, all), time.Now()
		rig.Child(t, nil, p.Netns, "pour", netip.AddrPortFrom(to, 9).String(), "1", strconv.Itoa(all), "0")
		waiting, ok = w.bands("eth0")
		if took := time.Since(since); took < pouring || !ok || waiting != [3]uint32{} {
			drained(t, sink)
			return waiting, ok
		}
		drained(t, sink) // all of it was sent before bands looked
	}
	t.Fatal("the machine is too busy to see what waits")
	return waiting, ok
}

// bands returns how many packets wait in each band of a device's fq. It returns false if it has no
// bands.
func (n *node) bands(device string) (waiting [3]uint32, ok bool) {
	n.t.Helper()
	const (
		stats2, app = 7, 4 // TCA_STATS2, and TCA_STATS_APP in it
		count       = 136  // offset of band_pkt_count in struct tc_fq_qd_stats
	)
	n.must(n.ns.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		request := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
		request.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(link.Attrs().Index)})
		messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC)
		if err != nil {
			return err
		}
		for _, m := range messages {
			attrs, err := nl.ParseRouteAttr(m[nl.SizeofTcMsg:])
			if err != nil {
				return err
			}
			if nl.DeserializeTcMsg(m).Ifindex != int32(link.Attrs().Index) {
				continue
			}
			for _, outer := range attrs {
				if outer.Attr.Type&^unix.NLA_F_NESTED != stats2 {
					continue
				}
				inner, err := nl.ParseRouteAttr(outer.Value)
				if err != nil {
					return err
				}
				for _, a := range inner {
					if a.Attr.Type != app || len(a.Value) < count+12 {
						continue
					}
					ok = true
					for i := range waiting {
						waiting[i] += binary.NativeEndian.Uint32(a.Value[count+4*i:])
					}
				}
			}
		}
		return nil
	}))
	return waiting, ok
}
