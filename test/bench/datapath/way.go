package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"fairlead.io/fairlead/test/bench/frames"
	"fairlead.io/fairlead/test/bench/napi"
	"fairlead.io/fairlead/test/bench/round"
)

// The metrics of rates. The first is how many packets a CPU could forward if it only did the first
// node's work.
const (
	established = "packets/s, CPU of the node"
	bothCost    = "ns, CPU of both nodes per packet"
)

// arrivalPatience is how long to wait for the last packets.
const arrivalPatience = 10 * time.Second

// way is the path of a setup's packets: through the first node to the backend of a service.
type way struct {
	*clientTwoNodes
	service int
	packets int
	source  *frames.Source
	sink    *frames.Sink
	arrived uint64
}

// newWay makes a way. From then on, the backend's sockets receive nothing.
func (s *clientTwoNodes) newWay(service, packets int, to netip.AddrPort) (_ *way, err error) {
	w := &way{clientTwoNodes: s, service: service, packets: packets}
	server := s.top.Servers[service]
	if w.sink, err = frames.AttachSink(server.Netns, frames.XDP, server.Ports[0].Index, podPort); err != nil {
		return nil, err
	}
	s.parts.add(w.sink.Close)
	client := s.top.Client
	if w.source, err = frames.NewSource(client.Netns, s.shape(to), client.Port(s.top.Nodes[0]).Index); err != nil {
		return nil, err
	}
	s.parts.add(w.source.Close)
	w.source.As = napi.Place{CPU: cpu, Priority: sends}.Do
	return w, nil
}

// variant returns the variant that sends packets along the way.
func (w *way) variant() round.Variant {
	return round.Variant{Name: nameOf(w.name, w.service), Run: w.run}
}

// nameOf returns the name of a way.
func nameOf(balancer string, service int) string {
	return balancer + []string{", this node", ", another node"}[service]
}

// run sends packets, and counts those that arrive and their cost.
func (w *way) run(ctx context.Context) (round.Sample, error) {
	before, err := w.spent()
	if err != nil {
		return round.Sample{}, err
	}
	burst, err := w.source.Send(w.packets)
	if err != nil {
		return round.Sample{}, err
	}
	waiting, cancel := context.WithTimeout(ctx, arrivalPatience)
	defer cancel()
	tally, err := w.sink.Wait(waiting, w.arrived+burst.Sent)
	if err != nil && waiting.Err() == nil {
		return round.Sample{}, err
	}
	sample := round.Sample{Claimed: burst.Sent, Arrived: tally.Packets - w.arrived}
	w.arrived = tally.Packets
	after, err := w.spent()
	if err != nil {
		return sample, err
	}
	first, second := after[0]-before[0], after[1]-before[1]
	if first <= 0 {
		return sample, fmt.Errorf("the first node took no time for %d packets", burst.Sent)
	}
	sample.Values = map[string]float64{
		established: float64(burst.Sent) / first.Seconds(),
		bothCost:    float64(first+second) / float64(burst.Sent),
	}
	return sample, nil
}

// spent returns the CPU time of both nodes.
func (w *way) spent() (times [2]time.Duration, err error) {
	for i, thread := range w.threads {
		if times[i], err = thread.Spent(); err != nil {
			return times, err
		}
	}
	return times, nil
}
