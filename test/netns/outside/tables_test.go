package outside

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"unique"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
)

// vipOf returns the address of the cluster's service that is forwarded in a mode.
func vipOf(mode lb.Direct) family {
	last := 10 + byte(mode)
	return family{netip.AddrFrom4([4]byte{203, 0, 113, last}), netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, 0xf, 15: last})}
}

// vips are the networks of these addresses.
var vips = [2]string{"203.0.113.0/24", "2001:db8:f::/64"}

const vipPort, targetPort = 80, 8080

// join writes a node's tables like an agent that watches the cluster: a service for each mode, each
// with all the pods of nodes b and d as backends.
func (a *agent) join(self string) (err error) {
	barrier, err := maps.NewBarrier()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, barrier.Close()) }()
	var problems []error
	store := model.NewStore(self)
	r, err := reconcile.New(reconcile.Config{
		Store: store, Facts: lb.Facts{ExternalIPs: lb.ExternalIPsAll, AcceptDirect: true}, Barrier: barrier.Wait,
		Tables: &reconcile.Tables{
			Frontends: a.Tables().Svcs, Ranges: a.Tables().Ranges, Services: a.Tables().Services, Slots: a.Tables().Slots,
			Backends: a.Tables().Backends, Names: a.Tables().Names,
		},
		Grow: func(maps.Sizes) (*reconcile.Tables, error) { return nil, errors.New("the cluster is small") },
		Report: func(key model.Key, _ string, p model.Problem) {
			problems = append(problems, fmt.Errorf("%s: %s", key, p.Message))
		},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	services, slices := cluster()
	store.ReplaceServices(services)
	store.ReplaceSlices(slices)
	store.ReplaceNodes([]*model.Node{{Name: self}})
	store.ReplaceNamespaces(nil)
	store.ReplacePods(nil)
	err = r.Drain()
	return errors.Join(append(problems, err)...)
}

// modes returns all modes.
func modes() []lb.Direct {
	return []lb.Direct{lb.DirectOff, lb.DirectIPIP, lb.DirectGeneve, lb.DirectOpt}
}

func cluster() (services []*model.Service, slices []*model.Slice) {
	for _, mode := range modes() {
		name := model.Name{Namespace: "shop", Name: mode.String()}
		services = append(services, &model.Service{
			Name: name, UID: name.Name, LoadBalancerIPs: []netip.Addr{vipOf(mode)[0], vipOf(mode)[1]}, Algorithm: lb.Maglev.String(), Direct: mode.String(),
			Ports: []model.Port{{Name: "t", Port: vipPort, Protocol: model.TCP}, {Name: "u", Port: vipPort, Protocol: model.UDP}},
		})
		for i, of := range []model.Family{model.IPv4, model.IPv6} {
			slices = append(slices, &model.Slice{
				Name: model.Name{Namespace: name.Namespace, Name: fmt.Sprintf("%s-%d", name.Name, of)}, Service: name.Name, Family: of, Weight: 1,
				Ports: []model.SlicePort{
					{Name: "t", Port: targetPort, Protocol: model.TCP}, {Name: "u", Port: targetPort, Protocol: model.UDP},
				},
				Endpoints: []model.Endpoint{
					{Addr: podB[i], Node: unique.Make("b"), Conditions: model.Ready | model.Serving},
					{Addr: podD[i], Node: unique.Make("d"), Conditions: model.Ready | model.Serving},
				},
			})
		}
	}
	return services, slices
}
