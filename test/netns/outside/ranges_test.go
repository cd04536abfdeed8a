package outside

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"
	"unique"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/test/rig"
)

// guarded writes the tables of a node whose services have source ranges, like an agent that follows
// changes of them.
type guarded struct {
	store      *model.Store
	reconciler *reconcile.Reconciler
}

// guardedServices returns addresses of load balancers, each with one backend, on this node and on
// another.
func guardedServices() map[string]struct{ vip, pod family } {
	return map[string]struct{ vip, pod family }{
		"near": {vipOf(lb.DirectOff), podA}, "far": {vipOf(lb.DirectIPIP), podB},
	}
}

// guard has the services let in the clients of these ranges.
func (a *agent) guard(ranges []netip.Prefix) error {
	fresh := a.guarded == nil
	if fresh {
		if err := a.startGuarded(); err != nil {
			return err
		}
	}
	var services []*model.Service
	var slices []*model.Slice
	for name, s := range guardedServices() {
		of := model.Name{Namespace: "shop", Name: name}
		services = append(services, &model.Service{
			Name: of, UID: name, LoadBalancerIPs: s.vip[:], SourceRanges: ranges,
			Ports: []model.Port{{Name: "t", Port: vipPort, Protocol: model.TCP}, {Name: "u", Port: vipPort, Protocol: model.UDP}},
		})
		for i, family := range []model.Family{model.IPv4, model.IPv6} {
			node := map[bool]string{true: "a", false: "b"}[name == "near"]
			slices = append(slices, &model.Slice{
				Name: model.Name{Namespace: "shop", Name: fmt.Sprintf("%s-%d", name, i)}, Service: name, Family: family, Weight: 1,
				Ports: []model.SlicePort{
					{Name: "t", Port: targetPort, Protocol: model.TCP}, {Name: "u", Port: targetPort, Protocol: model.UDP},
				},
				Endpoints: []model.Endpoint{{Addr: s.pod[i], Node: unique.Make(node), Conditions: model.Ready | model.Serving}},
			})
		}
	}
	a.guarded.store.ReplaceServices(services)
	if fresh {
		a.guarded.store.ReplaceSlices(slices)
		a.guarded.store.ReplaceNodes([]*model.Node{{Name: "a"}})
		a.guarded.store.ReplaceNamespaces(nil)
		a.guarded.store.ReplacePods(nil)
	}
	return a.guarded.reconciler.Drain()
}

func (a *agent) startGuarded() error {
	barrier, err := maps.NewBarrier()
	if err != nil {
		return err
	}
	rangeEpochs, err := a.RangeEpochs()
	if err != nil {
		return err
	}
	tables, store := a.Tables(), model.NewStore("a")
	r, err := reconcile.New(reconcile.Config{
		Store: store, Barrier: barrier.Wait, RangeEpochs: rangeEpochs,
		Tables: &reconcile.Tables{
			Frontends: tables.Svcs, Ranges: tables.Ranges, Services: tables.Services, Slots: tables.Slots,
			Backends: tables.Backends, Names: tables.Names,
		},
		Grow:   func(maps.Sizes) (*reconcile.Tables, error) { return nil, errors.New("the node is small") },
		Report: func(model.Key, string, model.Problem) {},
		Log:    slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	a.guarded = &guarded{store, r}
	return err
}

// guardedUse is a client that uses a guarded service over one flow.
type guardedUse struct {
	*child[order, seen]
	order
	again order // over the same flow
	far   bool
}

func (w *nodesBehindRouter) guardedUses() (uses []*guardedUse) {
	for name, s := range guardedServices() {
		for _, v6 := range []bool{false, true} {
			w.process(map[string]*rig.Netns{"near": w.pods[0], "far": w.pods[1]}[name]).do(order{Serve: s.pod.at(v6, targetPort)})
			dial, far := s.vip.at(v6, vipPort), name == "far"
			datagram := order{Dial: dial, UDP: true, From: uint16(7000 + len(uses)), Bytes: 100}
			uses = append(uses,
				// Answers must fit in one packet: a part of one would be taken for part of the
				// next.
				&guardedUse{w.process(w.client), order{Dial: dial, Hold: 1}, order{Hold: 1}, far},
				&guardedUse{w.process(w.client), datagram, datagram, far})
		}
	}
	return uses
}

// all runs do for all of them concurrently.
func all(t *testing.T, when string, uses []*guardedUse, do func(*guardedUse) error) {
	t.Helper()
	var running sync.WaitGroup
	for _, u := range uses {
		running.Go(func() {
			if err := do(u); err != nil {
				t.Errorf("%s: %+v: %v", when, u.order, err)
			}
		})
	}
	running.Wait()
}

// isRefused waits until the client gets no answers any more.
func (u *guardedUse) isRefused() error {
	o, began := u.again, time.Now()
	o.Brief = true
	for time.Since(began) < soon {
		if _, err := u.try(o); err != nil {
			return nil
		}
	}
	return errors.New("still answered")
}

// Clients in the source ranges may use a load balancer's address while an agent renews the lease on the
// ranges. When the ranges change to exclude them, their open connections and datagram flows are
// refused within a tick, as new ones are; when they are let in again, the flows continue. Only a
// connection to a backend on another node may have ended: what the backend sends meanwhile reaches
// no client.
func TestRangesChange(t *testing.T) {
	clients := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:1::/64")}
	others := []netip.Prefix{netip.MustParsePrefix("198.51.100.8/29"), netip.MustParsePrefix("2001:db8:1::8/125")}
	for _, xdp := range []string{"off", "native"} {
		t.Run("xdp "+xdp, func(t *testing.T) {
			w := newNodesBehindRouter(t, settings{xdp: xdp})
			for i, to := range vips {
				rig.Route(t, w.router, to, nodeA[i].String())
			}
			w.onA.do(nodeOrder{Ways: waysFollow})
			w.onA.do(nodeOrder{Ranges: clients})
			uses := w.guardedUses()
			begin := func(u *guardedUse) error { _, err := u.try(u.order); return err }
			goOn := func(u *guardedUse) error {
				for range 3 {
					if _, err := u.try(u.again); err != nil {
						return err
					}
				}
				return nil
			}
			all(t, "at first", uses, begin)
			all(t, "at first", uses, goOn)

			w.onA.do(nodeOrder{Ranges: others})
			all(t, "without their range", uses, (*guardedUse).isRefused)
			all(t, "without their range, again", uses, func(u *guardedUse) error {
				o := u.order
				if o.Brief = true; begin(&guardedUse{u.child, o, o, u.far}) == nil {
					return errors.New("a new connection is answered")
				}
				return nil
			})
			refused, drops := uint64(0), w.onA.do(nodeOrder{State: true}).Drops
			for _, hook := range []bpf.MapsHook{bpf.MapsHookHOOK_TC, bpf.MapsHookHOOK_XDP} {
				refused += drops[fmt.Sprintf("%v/%v", hook, bpf.MapsReasonREASON_SOURCE_RANGE)]
			}
			if refused < uint64(len(uses)) {
				t.Errorf("%d packets were refused; node a counted %v", refused, drops)
			}

			w.onA.do(nodeOrder{Ranges: clients})
			all(t, "when they are let in again", uses, func(u *guardedUse) error {
				if u.far && !u.UDP {
					return begin(u)
				}
				return goOn(u)
			})
		})
	}
}
