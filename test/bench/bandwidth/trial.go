package main

import (
	"context"
	"fmt"
	"time"

	"fairlead.io/fairlead/test/bench/result"
)

// The trial is what people do to see whether the annotation works: 50 Mbit/s, ten seconds, one
// connection.
const (
	trialRow     = "a trial"
	trialBits    = 50e6
	trialSeconds = 10
	trialLeast   = 0.95 // fraction of what the rate leaves for data
	trialMost    = 5.0  // % above that, on average from the beginning to the end of any second: a single second may make up for a pause of the machine
	trialData    = 1448.0 / 1514
)

// trial prints what arrives in each second, and judges it if the machine can send four times as
// much.
func (b *bench) trial(ctx context.Context, report *result.Report) (err error) {
	s := b.limited
	bits := int(trialBits)
	pod, err := s.addLimited(ctx, "trial", map[string]int{"limited": b.bits + 8, "trial": bits}) // once the other pod has its changed rate, the agent has read both
	if err != nil {
		return err
	}
	before, err := s.limited()
	if err != nil {
		return err
	}
	began, err := begin(pod, load{To: s.to, Streams: 1, Window: time.Minute})
	if err != nil {
		return err
	}
	defer began.Kill()
	seconds, err := s.perSecond(ctx)
	if err != nil {
		return err
	}
	after, err := s.limited()
	if err != nil {
		return err
	}
	fmt.Fprintf(report.Out(), "%s: %s, TCP, one connection\n  second  Mbit/s\n", trialRow, mbit(bits))
	above, sum, data := 0.0, 0.0, float64(bits)/1e6*trialData
	for i, mbits := range seconds {
		fmt.Fprintf(report.Out(), "  %6d  %6.2f\n", i+1, mbits)
		sum += mbits
		above = max(above, 100*(sum/float64(i+1)/data-1))
	}
	mean := sum / float64(len(seconds))
	dropped := after["trial"].Dropped - before["trial"].Dropped
	fmt.Fprintf(report.Out(), "  in all  %6.2f of %.2f that the rate leaves for data; %d packets dropped\n", mean, data, dropped)
	b.addRows(report, []result.Row{
		{Metric: "Mbit/s, received", Value: mean, Goal: trialLeast * data, Verdict: result.AtLeast(mean, trialLeast*data)},
		{Metric: "% above the rate, at the most", Value: above, Goal: trialMost, Verdict: result.AtMost(above, trialMost)},
		{Metric: "packets dropped", Value: float64(dropped), Verdict: result.Pass},
	})
	return nil
}

// addRows adds the rows of the trial, which are inconclusive if the machine is hardly faster than the
// rate.
func (b *bench) addRows(report *result.Report, rows []result.Row) {
	why := ""
	if b.most < share*trialBits/1e6 {
		why = fmt.Sprintf("without a rate a pod sends %.0f Mbit/s here, and less than four times the rate is not enough to judge it", b.most)
	}
	for _, row := range rows {
		row.Row, row.Case = trialRow, mbit(int(trialBits))+" for ten seconds"
		if why != "" {
			row.Verdict = result.Inconclusive
		}
		report.AddMeasured(row, result.Detail{Variant: ours, Why: why})
	}
}

// perSecond returns the Mbit/s that arrive in each second.
func (s *nodeAndSink) perSecond(ctx context.Context) (list []float64, err error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last, _, err := s.came()
	if err != nil {
		return nil, err
	}
	at := time.Now()
	for range trialSeconds {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
		bytes, _, err := s.came()
		if err != nil {
			return nil, err
		}
		now := time.Now()
		list = append(list, float64(bytes-last)*8/1e6/now.Sub(at).Seconds())
		last, at = bytes, now
	}
	return list, nil
}
