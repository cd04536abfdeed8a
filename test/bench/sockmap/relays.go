package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

// What is measured of a proxy, or of an echo server, per request or per message of 64 KiB.
const (
	callsOf    = "calls, of the proxy"
	sleepsOf   = "sleeps, of the proxy"
	switchesOf = "switches, of the whole machine"
	workOf     = "ns, CPU of the proxy"
)

// kernelRelay is the relay that forwards inside the kernel.
type kernelRelay struct {
	objects relayObjects
	dir     string
}

// newKernelRelay loads the relay, and pins the maps that a proxy puts its sockets into.
func (s *twoNodesTwoPods) newKernelRelay() (*kernelRelay, error) {
	k := &kernelRelay{dir: filepath.Join(s.bpffs, "relay")}
	if err := loadRelayObjects(&k.objects, nil); err != nil {
		return nil, fmt.Errorf("load the relay: %w", err)
	}
	s.later(k.objects.Close)
	if err := os.Mkdir(k.dir, 0o700); err != nil {
		return nil, err
	}
	for name, m := range map[string]*ebpf.Map{"relayed": k.objects.Relayed, "others": k.objects.Others, "talkers": k.objects.Talkers} {
		if err := m.Pin(filepath.Join(k.dir, name)); err != nil {
			return nil, fmt.Errorf("pin %s: %w", name, err)
		}
		s.later(m.Unpin)
	}
	for _, at := range []link.RawAttachProgramOptions{
		{Target: k.objects.Relayed.FD(), Program: k.objects.RelayVerdict, Attach: ebpf.AttachSkSKBStreamVerdict},
		{Target: k.objects.Talkers.FD(), Program: k.objects.LeastMessage, Attach: ebpf.AttachSkMsgVerdict},
	} {
		if err := link.RawAttachProgram(at); err != nil {
			return nil, fmt.Errorf("attach the relay: %w", err)
		}
		s.later(func() error {
			return link.RawDetachProgram(link.RawDetachProgramOptions{Target: at.Target, Program: at.Program, Attach: at.Attach})
		})
	}
	return k, nil
}

// relayWay is a way of forwarding for a proxy or an echo server.
type relayWay struct {
	name string
	way  string
	fast bool // both connections bypass TCP
}

func relayWays() []relayWay {
	return []relayWay{
		{wayEpoll, wayEpoll, false}, {wayEpoll + ", past TCP", wayEpoll, true}, {wayWait, wayWait, false}, {waySplice, waySplice, false},
		{wayAIO, wayAIO, false}, {wayKernel, wayKernel, false},
	}
}

// relayJob is the traffic with which the ways of a pure proxy or of an echo server are measured.
type relayJob struct {
	row, what string
	do, serve string
	job       job
	echo      bool
}

func relayJobs() []relayJob {
	return []relayJob{
		{"pure proxy", "64 B requests", "ask", "answer", job{64, 3000}, false},
		{"pure proxy", "16 KiB requests", "ask", "answer", job{16 << 10, 2000}, false},
		{"pure proxy", "64 KiB of a stream", "pour", "sink", job{64 << 10, 1500}, false},
		{"pure echo", "64 B requests", "ask", "", job{64, 3000}, true},
		{"pure echo", "16 KiB requests", "ask", "", job{16 << 10, 2000}, true},
	}
}

// relaying compares the ways of a pure proxy.
func (o *options) relaying(ctx context.Context, report *result.Report, s *twoNodesTwoPods) error {
	a, err := s.apps()
	if err != nil {
		return err
	}
	for _, j := range relayJobs() {
		if !o.wants(j.row, j.what) {
			continue
		}
		j.job.count = o.effortOf(j.job.count)
		if err := o.relayRow(ctx, report, a, j); err != nil {
			return err
		}
	}
	return nil
}

func (o *options) relayRow(ctx context.Context, report *result.Report, a *apps, j relayJob) error {
	row := j.row + ", " + j.what
	var variants []round.Variant
	for _, way := range relayWays() {
		variants = append(variants, round.Variant{Name: way.name, Run: func(ctx context.Context) (round.Sample, error) {
			defer context.AfterFunc(ctx, a.stop)()
			return a.relay(way, j)
		}})
	}
	series, err := o.turns(ctx, report, row, variants, 1)
	if err != nil {
		return err
	}
	metrics := []string{median, worst, callsOf, sleepsOf, switchesOf, workOf}
	if j.do == "pour" {
		metrics[0], metrics[1] = stream, round.Wall
	}
	for _, metric := range metrics {
		if slices.Contains(series.Values(wayEpoll, metric), 0) {
			continue // there is no ratio to zero
		}
		for _, way := range relayWays()[1:] {
			q := round.Question{Row: row, Case: way.name, Variant: way.name, Yardstick: wayEpoll, Metric: metric}
			if err := series.Report(report, q); err != nil {
				return err
			}
		}
	}
	return nil
}

// chain is an app, a proxy and another app, or an app and an echo server.
type chain struct {
	*apps
	way  relayWay
	echo bool
}

// open connects them.
func (c *chain) open() error {
	rules := c.s.all
	if !c.way.fast {
		rules = nil
	}
	if err := c.s.SetRules(rules); err != nil {
		return err
	}
	to := c.outside
	if c.echo {
		to = netip.AddrPort{}
	} else if err := c.server.send(order{Do: "accept", Way: blocking}); err != nil {
		return err
	}
	if err := c.proxy.send(order{Do: "meet", At: to}); err != nil {
		return err
	}
	if _, err := c.client.ask(order{Do: "dial", At: c.inside, Way: blocking}); err != nil {
		return err
	}
	if err := c.proxy.hear(&reply{}); err != nil {
		return err
	}
	if !c.echo {
		if err := c.server.hear(&reply{}); err != nil {
			return err
		}
	}
	if c.way.way == wayKernel {
		if _, err := c.proxy.ask(order{Do: "join", Dir: c.s.relay.dir}); err != nil {
			return err
		}
	}
	return c.proxy.send(order{Do: "relay", Way: c.way.way})
}

func (c *chain) talk(do, serve string, j job) (both, error) {
	one := order{Do: do, Count: j.count, Size: j.size}
	if c.echo {
		r, err := c.client.ask(one)
		return both{client: r}, err
	}
	other := one
	other.Do = serve
	return together(c.client, c.server, one, other)
}

// close makes both ends close, and returns the reply of the proxy.
func (c *chain) close() (r reply, err error) {
	if _, err := c.client.ask(order{Do: "close"}); err != nil {
		return r, err
	}
	if !c.echo {
		if _, err := c.server.ask(order{Do: "close"}); err != nil {
			return r, err
		}
	}
	return r, c.proxy.hear(&r)
}

// relay measures one way. All processes share one CPU, so that the kernel's work for a proxy counts
// too.
func (a *apps) relay(way relayWay, j relayJob) (sample round.Sample, err error) {
	via := *a
	if way.way == waySplice {
		via.proxy, via.inside = a.splicer, a.spliced
	}
	c := &chain{&via, way, j.echo}
	if err := c.open(); err != nil {
		return sample, err
	}
	if err := c.warm(j.job); err != nil {
		return sample, err
	}
	before, err := switches()
	if err != nil {
		return sample, err
	}
	b, err := c.talk(j.do, j.serve, j.job)
	if err != nil {
		return sample, err
	}
	after, err := switches()
	if err != nil {
		return sample, err
	}
	r, err := c.close()
	if err != nil {
		return sample, err
	}
	arrived := b.server.Bytes
	if j.echo {
		arrived = b.client.Bytes
	}
	sample = round.Sample{Claimed: b.client.Done, Arrived: arrived / uint64(j.job.size), Took: b.client.Took}
	all := float64(j.job.count + 2*warm)
	sample.Values = map[string]float64{
		callsOf: float64(r.Calls) / all, sleepsOf: float64(r.Waits) / all, workOf: float64(r.CPU) / all,
		switchesOf: float64(after-before) / float64(j.job.count),
	}
	if j.do == "pour" {
		sample.Values[stream] = float64(arrived) * 8 / float64(b.client.Took)
	} else {
		sample.Values[median], sample.Values[worst] = b.client.Median, b.client.Worst
	}
	return sample, nil
}

// warm lets the ends converse, until their connections bypass TCP if they are meant to.
func (c *chain) warm(j job) error {
	connections := 2
	if c.echo {
		connections = 1
	}
	for range 2 {
		if _, err := c.talk("ask", "answer", job{min(j.size, chat), warm}); err != nil {
			return err
		}
		if c.way.fast {
			if err := c.admitted(accelerated, connections); err != nil {
				return err
			}
		}
	}
	return nil
}

// switches returns the number of context switches of the machine.
func switches() (uint64, error) {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	_, after, found := bytes.Cut(content, []byte("\nctxt "))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	if !found {
		return 0, errors.New("read /proc/stat: it has no count of context switches")
	}
	return strconv.ParseUint(string(line), 10, 64)
}
