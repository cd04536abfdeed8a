package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"unique"

	"fairlead.io/fairlead/pkg/model"
)

// fleet is a set of objects like those that a source translates: no two share a string.
type fleet struct {
	services []*model.Service
	slices   []*model.Slice
}

func address(prefix byte, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{prefix, byte(n >> 16), byte(n >> 8), byte(n)})
}

func makeSlice(i, endpoints, generation int) *model.Slice {
	name := "service-" + strconv.Itoa(i)
	s := &model.Slice{
		Name:    model.Name{Namespace: "namespace-" + strconv.Itoa(i%100), Name: name + "-x7k2p"},
		Service: name, Family: model.IPv4, Weight: 1,
		Ports:     []model.SlicePort{{Name: "http", Port: 8080, Protocol: model.TCP}},
		Endpoints: make([]model.Endpoint, endpoints),
	}
	for e := range s.Endpoints {
		s.Endpoints[e] = model.Endpoint{
			Addr:       address(10, i*endpoints+(e+generation)%endpoints),
			Node:       unique.Make("node-" + strconv.Itoa(e)),
			Conditions: model.Ready | model.Serving,
		}
	}
	return s
}

func makeFleet(services, endpoints int) *fleet {
	f := &fleet{}
	for i := range services {
		f.services = append(f.services, &model.Service{
			Name:       model.Name{Namespace: "namespace-" + strconv.Itoa(i%100), Name: "service-" + strconv.Itoa(i)},
			UID:        fmt.Sprintf("%08x-0000-4000-8000-000000000000", i),
			Created:    int64(i),
			ClusterIPs: []netip.Addr{address(11, i)},
			Ports:      []model.Port{{Name: "http", Port: 80, Protocol: model.TCP}},
		})
		f.slices = append(f.slices, makeSlice(i, endpoints, 0))
	}
	return f
}

func (f *fleet) deliver(store *model.Store) {
	store.ReplaceServices(f.services)
	store.ReplaceSlices(f.slices)
	store.ReplaceNodes(nil)
	store.ReplaceNamespaces(nil)
	store.ReplacePods(nil)
}
