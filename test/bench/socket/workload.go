package main

import (
	"fairlead.io/fairlead/test/bench/flow"
	"fairlead.io/fairlead/test/bench/round"
)

// What is measured in every run. The metric "least" is that of the one operation, or batch, that
// nothing disturbed: it is stable even on a busy machine, but does not show the effect of many
// services on the caches.
const (
	median = "ns, median"
	least  = "ns, least"
	rate   = "conn/s, by the median"
)

// workload is a kind of traffic, and the goal for ways that lead through a service.
type workload struct {
	row       string
	job       flow.Job
	metric    string
	goal      float64
	yardstick string // what the goal is relative to
	over      bool   // the goal applies to the difference to the yardstick
	tcp       bool
	connects  bool // every operation opens its own socket
}

// workloads returns every kind of traffic. The operations of one run take about a fifth of a
// second.
func workloads(effort float64) []workload {
	list := []workload{
		{
			row: "request and response", metric: median, goal: 1.01, yardstick: direct, tcp: true,
			job: flow.Job{Kind: flow.RequestResponse, Operations: 16_000, WarmUp: 1000},
		}, {
			row: "connect, request, close", metric: rate, goal: 0.97, yardstick: direct, tcp: true, connects: true,
			job: flow.Job{Kind: flow.Connect, Operations: 5000, WarmUp: 300},
		}, {
			row: "UDP send, not connected", metric: median, goal: 250, yardstick: direct, over: true,
			job: flow.Job{Kind: flow.Send, Operations: 48_000, WarmUp: 1024, Unconnected: true},
		}, {
			// The hooks for sending and receiving take locks on both sides, whatever the programs
			// do. So the goal applies to what our programs add to those that do the least.
			row: "UDP send and reply, not connected", metric: median, goal: 250, yardstick: minimum, over: true,
			job: flow.Job{Kind: flow.Datagram, Operations: 16_000, WarmUp: 1000, Unconnected: true},
		}, {
			row: "UDP open, connect, close", metric: median, yardstick: direct, over: true, connects: true,
			job: flow.Job{Kind: flow.Associate, Operations: 9600, WarmUp: 640},
		},
	}
	for i := range list {
		job := &list[i].job
		job.Operations, job.WarmUp = max(int(effort*float64(job.Operations)), 64), max(int(min(effort, 1)*float64(job.WarmUp)), 1)
	}
	return list
}

// ask returns the questions about one way relative to another: those on the median and on the
// least, with or without the goal.
func (w workload) ask(row string, of, beside *way, goal bool) []round.Question {
	q := round.Question{Row: row, Case: of.name, Metric: w.metric, Variant: of.name, Yardstick: beside.name, Over: w.over}
	undisturbed := q
	undisturbed.Metric = least
	if goal {
		q.Goal, undisturbed.Goal = w.goal, w.goal
	}
	if goal && w.metric == rate && w.goal != 0 {
		undisturbed.Goal = 1 / w.goal
	}
	return []round.Question{q, undisturbed}
}
