package netns

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/sockets"
	"fairlead.io/fairlead/test/bench/minimal/limited"
	"fairlead.io/fairlead/test/rig"
)

// nodeWithSweeper is a node whose maps follow a store, and whose sockets to backends that are gone are
// aborted.
type nodeWithSweeper struct {
	*node
	host    *rig.Netns
	store   *model.Store
	sweeper *sockets.Sweeper
	stop    func()
}

// newNodeWithSweeper returns a node whose store is empty and synced.
func newNodeWithSweeper(t *testing.T, protocols ...model.Protocol) *nodeWithSweeper {
	t.Helper()
	rig.MapIterators(t)
	host := rig.NewNetns(t, "node")
	k := &nodeWithSweeper{node: newNodeIn(t, host), host: host}
	k.start(model.NewStore("node"), protocols...)
	k.deliver()
	return k
}

// start runs what an agent runs, until stop is called or the test ends.
func (k *nodeWithSweeper) start(store *model.Store, protocols ...model.Protocol) {
	k.t.Helper()
	log := slog.New(slog.NewTextHandler(k.t.Output(), nil))
	var peers *datapath.SocketOrigins
	if err := limited.Do(func() (err error) { peers, err = k.SocketOrigins(slices.Contains(protocols, model.TCP)); return err }); err != nil {
		k.t.Fatal(err)
	}
	barrier, err := maps.NewBarrier()
	if err != nil {
		k.t.Fatal(err)
	}
	var waiting sync.Mutex // a barrier may outlast the Run that needed it
	var reconciler *reconcile.Reconciler
	k.store = store
	k.sweeper = sockets.NewSweeper(sockets.Config{
		Records: peers, Protocols: protocols, Log: log,
		Stale: func(ctx context.Context, p []maps.Origin) ([]bool, error) { return reconciler.Stale(ctx, p) },
	})
	k.watch("node", k.host)
	if reconciler, err = reconcile.New(reconcile.Config{
		Store: store, Tables: k.tables(), Facts: lb.Facts{ExternalIPs: lb.ExternalIPsAll}, Log: log,
		Barrier: func() error {
			waiting.Lock()
			defer waiting.Unlock()
			return barrier.Wait()
		},
		Grow: func(sizes maps.Sizes) (*reconcile.Tables, error) { return k.tables(), k.Grow(sizes) },
		Left: k.sweeper.Left,
	}); err != nil {
		k.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = reconciler.Run(ctx) })
	running.Go(func() {
		// Run it with the agent's capabilities only: what the agent is not allowed to do must not
		// work here either.
		if err := limited.Do(func() error { return k.sweeper.Run(ctx) }); err != nil {
			k.t.Error(err)
		}
	})
	k.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		waiting.Lock()
		defer waiting.Unlock()
		for _, close := range []func() error{k.sweeper.Close, peers.Close, barrier.Close} {
			if err := close(); err != nil {
				k.t.Error(err)
			}
		}
	})
	k.t.Cleanup(func() { k.stop() })
}

// watch hands the sweeper a sock_diag socket opened in a namespace.
func (k *nodeWithSweeper) watch(name string, ns *rig.Netns) {
	k.t.Helper()
	if err := ns.Do(func() error {
		return limited.Do(func() error {
			diag, err := sockets.Open()
			if err != nil {
				return err
			}
			return k.sweeper.Add(name, diag)
		})
	}); err != nil {
		k.t.Fatal(err)
	}
}

func (k *nodeWithSweeper) tables() *reconcile.Tables {
	t := k.Tables()
	return &reconcile.Tables{Frontends: t.Svcs, Ranges: t.Ranges, Services: t.Services, Slots: t.Slots, Backends: t.Backends, Names: t.Names}
}

// deliver replaces the content of the store at once: these services with their slices.
func (k *nodeWithSweeper) deliver(services ...endpointsOf) {
	var list []*model.Service
	var slices []*model.Slice
	for _, s := range services {
		list = append(list, s.service())
		slices = append(slices, s.slice())
	}
	k.store.ReplaceServices(list)
	k.store.ReplaceSlices(slices)
	k.store.ReplaceNodes(nil)
	k.store.ReplaceNamespaces(nil)
	k.store.ReplacePods(nil)
}

// waitSlots waits until a service in the maps has this many slots.
func (k *nodeWithSweeper) waitSlots(s endpointsOf, slots int) {
	k.t.Helper()
	k.until(func() bool {
		row, ok := k.row(s)
		return ok && maps.Word(k.Tables().Services[row.Service].Words[maps.ScopeAll]).Len() == slots
	}, "%s did not get %d slots", s.vip, slots)
}

// waitGone waits until a service is not in the maps.
func (k *nodeWithSweeper) waitGone(s endpointsOf) {
	k.t.Helper()
	k.until(func() bool {
		_, ok := k.row(s)
		return !ok
	}, "%s is still there", s.vip)
}

func (k *nodeWithSweeper) row(s endpointsOf) (maps.Svc, bool) {
	k.t.Helper()
	row, ok, err := k.Tables().Svcs.Lookup(maps.KeyOf(s.vip.Addr(), s.vip.Port(), s.proto))
	if err != nil {
		k.t.Fatal(err)
	}
	return row, ok
}

// until waits for something that the reconciler does on its own.
func (k *nodeWithSweeper) until(done func() bool, format string, args ...any) {
	k.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			k.t.Fatalf(format, args...)
		}
	}
}

// endpointsOf is a Service with endpoints that all have the given conditions, or are ready.
type endpointsOf struct {
	name       string
	vip        netip.AddrPort
	proto      model.Protocol
	backends   []netip.AddrPort
	conditions map[netip.AddrPort]model.Conditions
}

func (s endpointsOf) service() *model.Service {
	return &model.Service{
		Name: model.Name{Namespace: "shop", Name: s.name}, UID: s.name, Created: 1, ClusterIPs: []netip.Addr{s.vip.Addr()},
		Ports: []model.Port{{Port: s.vip.Port(), Protocol: s.proto}},
	}
}

func (s endpointsOf) slice() *model.Slice {
	slice := &model.Slice{
		Name: model.Name{Namespace: "shop", Name: s.name}, Service: s.name, Family: model.FamilyOf(s.vip.Addr()), Weight: 1,
	}
	for _, b := range s.backends {
		slice.Ports = []model.SlicePort{{Port: b.Port(), Protocol: s.proto}}
		conditions, ok := s.conditions[b]
		if !ok {
			conditions = model.Ready | model.Serving
		}
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: b.Addr(), Conditions: conditions})
	}
	return slice
}

// without returns the service without some backends.
func (s endpointsOf) without(gone ...netip.AddrPort) endpointsOf {
	s.backends = slices.DeleteFunc(slices.Clone(s.backends), func(b netip.AddrPort) bool { return slices.Contains(gone, b) })
	return s
}

// as returns the service with some backends in a condition.
func (s endpointsOf) as(conditions model.Conditions, backends ...netip.AddrPort) endpointsOf {
	s.conditions = map[netip.AddrPort]model.Conditions{}
	for _, b := range backends {
		s.conditions[b] = conditions
	}
	return s
}

// at returns the service with its backends on another port.
func (s endpointsOf) at(port uint16) endpointsOf {
	s.backends = slices.Clone(s.backends)
	for i := range s.backends {
		s.backends[i] = netip.AddrPortFrom(s.backends[i].Addr(), port)
	}
	return s
}

// begin makes a call and does not wait; the returned function waits for the outcome.
func (p *program) begin(o op) (finish func() outcome) {
	p.t.Helper()
	if err := json.NewEncoder(p.process.Stdin).Encode(o); err != nil {
		p.t.Fatal(err)
	}
	return func() outcome {
		p.t.Helper()
		line, err := p.process.ReadLine()
		if err != nil {
			p.t.Fatal(err)
		}
		var out outcome
		if err := json.Unmarshal([]byte(line), &out); err != nil || out.Err != "" {
			p.t.Fatalf("%+v: %v %s", o, err, out.Err)
		}
		return out
	}
}
