package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/bench/topology"
)

// The ports of every service, and of the server.
const (
	frontPort  = 80
	serverPort = 8080
)

func families() []topology.Family { return []topology.Family{topology.IPv4, topology.IPv6} }

// clusterIP returns an address that only this service has.
func clusterIP(family topology.Family, number int) netip.Addr {
	if family == topology.IPv4 {
		return netip.AddrFrom4([4]byte{11, byte(number >> 16), byte(number >> 8), byte(number)})
	}
	addr := [16]byte{0: 0xfd, 1: 0x11}
	binary.BigEndian.PutUint32(addr[12:], uint32(number))
	return netip.AddrFrom16(addr)
}

// podIP returns the address of a pod that no client dials.
func podIP(family topology.Family, number int) netip.Addr {
	if family == topology.IPv4 {
		return netip.AddrFrom4([4]byte{10, 0x80 | byte(number>>16), byte(number >> 8), byte(number)})
	}
	addr := [16]byte{0: 0xfd, 1: 0x10}
	binary.BigEndian.PutUint32(addr[12:], uint32(number))
	return netip.AddrFrom16(addr)
}

// fleet is services of both families, each with one pod and a port for each protocol. The last
// service leads to the server.
type fleet struct {
	services int
	server   func(topology.Family) netip.Addr
}

// frontend returns the frontend of the service that leads to the server.
func (f fleet) frontend(family topology.Family) netip.AddrPort {
	return netip.AddrPortFrom(clusterIP(family, f.services-1), frontPort)
}

func (f fleet) String() string { return fmt.Sprintf("%d services", f.services) }

// deliver puts the objects into a store, as a source does.
func (f fleet) deliver(store *model.Store) {
	var services []*model.Service
	var slices []*model.Slice
	for i := range f.services {
		name := model.Name{Namespace: "namespace-" + strconv.Itoa(i%100), Name: "service-" + strconv.Itoa(i)}
		service := &model.Service{
			Name: name, UID: fmt.Sprintf("%08x-0000-4000-8000-000000000000", i), Created: int64(i),
			Ports: []model.Port{{Name: "tcp", Port: frontPort, Protocol: model.TCP}, {Name: "udp", Port: frontPort, Protocol: model.UDP}},
		}
		for _, family := range families() {
			service.ClusterIPs = append(service.ClusterIPs, clusterIP(family, i))
			slices = append(slices, f.slice(family, i, name))
		}
		services = append(services, service)
	}
	store.ReplaceServices(services)
	store.ReplaceSlices(slices)
	store.ReplaceNodes(nil)
	store.ReplaceNamespaces(nil)
	store.ReplacePods(nil)
}

func (f fleet) slice(family topology.Family, number int, service model.Name) *model.Slice {
	pod := podIP(family, number)
	if number == f.services-1 {
		pod = f.server(family)
	}
	s := &model.Slice{
		Name:    model.Name{Namespace: service.Namespace, Name: service.Name + "-" + family.String()},
		Service: service.Name, Family: model.IPv4, Weight: 1,
		Ports: []model.SlicePort{
			{Name: "tcp", Port: serverPort, Protocol: model.TCP}, {Name: "udp", Port: serverPort, Protocol: model.UDP},
		},
		Endpoints: []model.Endpoint{{Addr: pod, Conditions: model.Ready | model.Serving}},
	}
	if family == topology.IPv6 {
		s.Family = model.IPv6
	}
	return s
}
