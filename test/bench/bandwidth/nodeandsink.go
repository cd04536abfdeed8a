package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"fairlead.io/fairlead/test/bench/node"
	"fairlead.io/fairlead/test/rig"
)

// nodeAndSink is a node with a pod, and an outside host that receives what the pod sends.
type nodeAndSink struct {
	node, pod *rig.Netns
	sink      *rig.Process
	agent     *node.Node // nil if there is none
	to        netip.Addr
	closers   []func() error
}

func (s *nodeAndSink) Close() error {
	var errs []error
	for i := range s.closers {
		errs = append(errs, s.closers[len(s.closers)-1-i]())
	}
	return errors.Join(errs...)
}

// newAgentNodeAndSink makes the node with the real agent.
func newAgentNodeAndSink(ctx context.Context, binaries string, flags ...string) (_ *nodeAndSink, err error) {
	n, err := node.New(binaries, flags...)
	if err != nil {
		return nil, err
	}
	s := &nodeAndSink{agent: n, node: n.Netns, to: node.Outside, closers: []func() error{n.Close}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.pod, err = s.addPod(ctx, "limited"); err != nil {
		return nil, err
	}
	return s, s.listen(n.Outside)
}

// addPod adds a pod to a node with an agent.
func (s *nodeAndSink) addPod(ctx context.Context, id string) (*rig.Netns, error) {
	p, err := s.agent.NewPod(id)
	if err != nil {
		return nil, err
	}
	if _, err := s.agent.Add(ctx, p); err != nil {
		return nil, err
	}
	return p.Netns, forget(p.Netns)
}

// newPlainNodeAndSink makes the node with the same devices, where the node's stack forwards packets, as with
// any plugin that only makes devices.
func newPlainNodeAndSink() (_ *nodeAndSink, err error) {
	s := &nodeAndSink{to: node.Outside}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	var outside *rig.Netns
	for label, at := range map[string]**rig.Netns{"plain": &s.node, "outside": &outside, "limited": &s.pod} {
		if *at, err = rig.CreateNetns(label); err != nil {
			return nil, err
		}
		s.closers = append(s.closers, (*at).Close)
	}
	prefix := netip.MustParsePrefix
	if err := errors.Join(
		rig.ConnectVeth(s.node, "eth0", outside, "eth0"), rig.ConnectVeth(s.node, "pod0", s.pod, "eth0"),
		s.node.AddAddr("eth0", prefix("198.51.100.1/24")), outside.AddAddr("eth0", prefix(node.Outside.String()+"/24")),
		s.node.AddAddr("pod0", prefix("10.1.0.1/24")), s.pod.AddAddr("eth0", prefix("10.1.0.2/24")),
		s.pod.AddRoute(prefix("0.0.0.0/0"), netip.MustParseAddr("10.1.0.1")),
		outside.AddRoute(prefix("10.1.0.0/16"), netip.MustParseAddr("198.51.100.1")),
		s.node.SetSysctl("net/ipv4/ip_forward", "1"), forget(s.pod),
	); err != nil {
		return nil, err
	}
	return s, s.listen(outside)
}

// forget keeps a pod's connections from starting with metrics of earlier ones.
func forget(pod *rig.Netns) error { return pod.SetSysctl("net/ipv4/tcp_no_metrics_save", "1") }

func (s *nodeAndSink) listen(outside *rig.Netns) (err error) {
	if s.sink, err = rig.StartChild(nil, outside, "bandwidth-sink"); err != nil {
		return err
	}
	s.closers = append(s.closers, func() error { s.sink.Kill(); return nil })
	if line, err := s.sink.ReadLine(); err != nil || line != "ready" {
		return fmt.Errorf("start the sink: %q, %w", line, err)
	}
	return nil
}

// came returns the bytes of streams and the number of requests that have arrived outside so far.
func (s *nodeAndSink) came() (bytes, asked uint64, err error) {
	if _, err := fmt.Fprintln(s.sink.Stdin); err != nil {
		return 0, 0, err
	}
	line, err := s.sink.ReadLine()
	if err != nil {
		return 0, 0, errors.Join(err, s.sink.Wait())
	}
	_, err = fmt.Sscan(line, &bytes, &asked)
	return bytes, asked, err
}

// addLimited adds a pod that has a rate, in bits per second, from the start: when the agent has
// applied the other rates, it knows this one too.
func (s *nodeAndSink) addLimited(ctx context.Context, id string, rates map[string]int) (*rig.Netns, error) {
	if err := s.annotate(rates); err != nil {
		return nil, err
	}
	others := maps.Clone(rates)
	delete(others, id)
	if err := s.hold(ctx, others); err != nil {
		return nil, err
	}
	pod, err := s.addPod(ctx, id)
	if err != nil {
		return nil, err
	}
	return pod, s.hold(ctx, rates)
}

// annotate sets the rates of the agent's pods, in bits per second.
func (s *nodeAndSink) annotate(rates map[string]int) error {
	var text strings.Builder
	for id, rate := range rates {
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Pod
metadata:
  namespace: %s
  name: %s
  uid: uid-%s
  annotations: {kubernetes.io/egress-bandwidth: "%d"}
spec: {nodeName: %[1]s, containers: []}
`, node.Name, id, id, rate)
	}
	return s.agent.Apply(text.String())
}

// hold waits until the pods are kept to their rates.
func (s *nodeAndSink) hold(ctx context.Context, rates map[string]int) error {
	for deadline := time.Now().Add(time.Minute); ; {
		held, err := s.limited()
		if err != nil {
			return err
		}
		missing := false
		for id, rate := range rates {
			missing = missing || held[id].Rate != uint64(rate)
		}
		switch {
		case !missing:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("rates: want %v, have %v", rates, held)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// started is a running load.
type started struct {
	*rig.Process
	load load
}

// begin makes a pod send until the load is stopped.
func begin(pod *rig.Netns, l load) (*started, error) {
	text, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	p, err := rig.StartChild(nil, pod, "bandwidth-load", string(text))
	if err != nil {
		return nil, err
	}
	if line, err := p.ReadLine(); err != nil || line != "ready" {
		p.Kill()
		return nil, fmt.Errorf("start a load: %q, %w", line, errors.Join(err, p.Wait()))
	}
	return &started{p, l}, nil
}

// count counts requests from now on, for the window, and returns how long they took.
func (s *started) count() (t times, err error) {
	if _, err := fmt.Fprintln(s.Stdin); err != nil {
		return t, errors.Join(err, s.Wait())
	}
	line, err := s.ReadLine()
	if err != nil {
		return t, errors.Join(err, s.Wait())
	}
	return t, json.Unmarshal([]byte(line), &t)
}

func mbit(bits int) string { return strconv.FormatFloat(float64(bits)/1e6, 'f', -1, 64) + " Mbit/s" }

// limited is an entry of "fairlead bandwidth list".
type limited struct {
	Pod     string
	Rate    uint64 // bits per second
	Dropped uint64 // packets
}

// limited returns the pods that the agent keeps to a rate, by name.
func (s *nodeAndSink) limited() (map[string]limited, error) {
	text, err := s.agent.Ask("bandwidth", "list", "--output=json")
	if err != nil {
		return nil, err
	}
	var list []limited
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read the pods with a rate: %w", err)
	}
	pods := map[string]limited{}
	for _, l := range list {
		pods[strings.TrimPrefix(l.Pod, node.Name+"/")] = l
	}
	return pods, nil
}
