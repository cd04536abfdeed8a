package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

// The proxied scenario: an app sends another one on the node 2,000 requests per second, directly or
// through a proxy in its own pod.
const (
	direct      = "direct"
	proxied     = "proxy"
	accelerated = "proxy, past TCP"

	payload     = 16 << 10
	goalProxied = 0.85
)

var concurrencies = []int{1, 4, 16, 64}

// apps are the processes.
type apps struct {
	s                     *twoNodesTwoPods
	client, proxy, server *hand
	inside, outside       netip.AddrPort // addresses of the proxy and the server
	splicer               *hand          // another proxy, since sockets that were ever spliced stay with TCP
	spliced               netip.AddrPort // address of the other proxy
}

func (s *twoNodesTwoPods) apps() (*apps, error) {
	a := &apps{s: s}
	for h, where := range map[**hand]struct {
		pod  int
		name string
	}{&a.client: {0, "app"}, &a.proxy: {0, "proxy"}, &a.splicer: {0, "proxy by splice"}, &a.server: {1, "other app"}} {
		var err error
		if *h, err = s.hire(s.pods[where.pod].Netns, where.name); err != nil {
			return nil, err
		}
	}
	own := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for h, where := range map[*hand]struct {
		addr netip.Addr
		at   *netip.AddrPort
	}{a.proxy: {own, &a.inside}, a.splicer: {own, &a.spliced}, a.server: {s.pods[1].Addr, &a.outside}} {
		r, err := h.ask(order{Do: "listen", At: netip.AddrPortFrom(where.addr, 0), CPU: anyCPU})
		if err != nil {
			return nil, err
		}
		*where.at = r.At
	}
	return a, nil
}

func (a *apps) stop() {
	for _, h := range []*hand{a.client, a.proxy, a.splicer, a.server} {
		h.Kill()
	}
}

// proxying measures requests at a fixed rate over more and more connections.
func (o *options) proxying(ctx context.Context, report *result.Report, s *twoNodesTwoPods) error {
	a, err := s.apps()
	if err != nil {
		return err
	}
	for _, c := range []cpus{{"same core", 0, 0}, {"any core", anyCPU, anyCPU}} {
		for _, many := range concurrencies {
			row, what := "proxied requests, 2000 a second of 16 KiB", fmt.Sprintf("%d connections, %s", many, c.name)
			if !o.wants(row, what) {
				continue
			}
			var variants []round.Variant
			for _, name := range []string{direct, proxied, accelerated} {
				variants = append(variants, round.Variant{Name: name, Run: func(ctx context.Context) (round.Sample, error) {
					defer context.AfterFunc(ctx, a.stop)()
					return a.run(name, c, many, o.effortOf(600))
				}})
			}
			series, err := o.turns(ctx, report, row+", "+what, variants, 1)
			if err != nil {
				return err
			}
			q := round.Question{Row: row, Case: what, Variant: accelerated, Yardstick: proxied, Metric: median, Goal: goalProxied}
			late, price := q, q
			late.Metric, late.Goal = worst, 0
			price.Row, price.Variant, price.Yardstick, price.Goal = row+", beside direct ones", proxied, direct, 0
			if err := series.Report(report, q, late, price); err != nil {
				return err
			}
		}
	}
	return nil
}

// run makes the app send requests.
func (a *apps) run(name string, c cpus, many, requests int) (sample round.Sample, err error) {
	rules := a.s.all
	if name != accelerated {
		rules = nil
	}
	if err := a.s.SetRules(rules); err != nil {
		return sample, err
	}
	to := a.inside
	if err := a.server.send(order{Do: "entertain", Count: many, Size: payload, CPU: c.server}); err != nil {
		return sample, err
	}
	if name == direct {
		to = a.outside
	} else if err := a.proxy.send(order{Do: "forward", At: a.outside, Count: many, CPU: c.server}); err != nil {
		return sample, err
	}
	ask := func(o order) (reply, error) {
		o.CPU, o.Size = c.client, payload
		return a.client.ask(o)
	}
	if _, err := ask(order{Do: "gather", At: to, Count: many}); err != nil {
		return sample, err
	}
	for range 2 {
		if _, err := ask(order{Do: "burst", Count: warm / 2, Way: flood}); err != nil {
			return sample, err
		}
		if err := a.admitted(name, 2*many); err != nil {
			return sample, err
		}
	}
	was, err := a.s.Tallies()
	if err != nil {
		return sample, err
	}
	bursts := max(requests/many, 4)
	r, err := ask(order{Do: "burst", Count: bursts})
	if err != nil {
		return sample, err
	}
	is, err := a.s.Tallies()
	if err != nil {
		return sample, err
	}
	// Each request and each answer uses two connections.
	if past := is.Redirected.Bytes - was.Redirected.Bytes; name == accelerated && float64(past) < enough*4*payload*float64(r.Done) || name != accelerated && past > 0 {
		return sample, fmt.Errorf("%d bytes of %d requests went past TCP: %+v", past, r.Done, is.Passed)
	}
	return a.finish(name, r, many)
}

// finish closes all connections and counts what has arrived.
func (a *apps) finish(name string, r reply, many int) (sample round.Sample, err error) {
	if _, err := a.client.ask(order{Do: "scatter", CPU: anyCPU}); err != nil {
		return sample, err
	}
	var served, forwarded reply
	if name != direct {
		if err := a.proxy.hear(&forwarded); err != nil {
			return sample, err
		}
	}
	if err := a.server.hear(&served); err != nil {
		return sample, err
	}
	if want := r.Done + uint64(warm*many); served.Bytes != want*payload {
		return sample, fmt.Errorf("%d bytes arrived, want those of %d requests", served.Bytes, want)
	}
	return round.Sample{
		Claimed: r.Done, Arrived: served.Bytes/payload - uint64(warm*many), Took: r.Took, Values: map[string]float64{median: r.Median, worst: r.Worst},
	}, nil
}

// admitted waits until all connections bypass TCP, if they are meant to.
func (a *apps) admitted(name string, want int) error {
	if name != accelerated {
		return nil
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		list, err := a.s.Pairs()
		if err != nil {
			return err
		}
		short := 0
		for _, p := range list {
			if p.State == "accelerated" {
				short++
			}
		}
		if short == want {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d connections bypass TCP, so there is nothing to measure: %+v", short, want, firstOf(list))
		}
	}
}

func firstOf(list []sockmap.Pair) sockmap.Pair {
	for _, p := range list {
		if p.State != "accelerated" {
			return p
		}
	}
	return sockmap.Pair{}
}
