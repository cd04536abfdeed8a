package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"fairlead.io/fairlead/pkg/conntrack"
)

// conntrackFamilies are about the flows of packets that are remembered.
func conntrackFamilies() []family {
	return []family{
		{
			name: "fairlead_conntrack_entries", kind: prometheus.GaugeValue, labels: []string{"protocol", "state"},
			help: "Rows of flows that the last pass over them met; a flow has one for each direction.",
			read: func(s *Sample, put put) {
				for class, states := range s.Conntrack.Entries {
					for state, n := range states {
						put(float64(n), conntrack.ClassNames[class], conntrack.StateNames[state])
					}
				}
			},
		},
		counter("fairlead_conntrack_gc_passes_total", "Passes over the flows.",
			func(s *Sample) float64 { return float64(s.Conntrack.Passes) }),
		counter("fairlead_conntrack_gc_seconds_total", "How long all of them took together.",
			func(s *Sample) float64 { return s.Conntrack.Took.Seconds() }),
		gauge("fairlead_conntrack_gc_duration_seconds", "How long the last of them took.",
			func(s *Sample) float64 { return s.Conntrack.LastTook.Seconds() }),
		gauge("fairlead_conntrack_gc_last_pass_timestamp_seconds", "When it ended; 0 for never.",
			func(s *Sample) float64 { return seconds(s.Conntrack.LastPass) }),
		counter("fairlead_conntrack_gc_errors_total", "Times that something went wrong; flows that are over stay for longer then.",
			func(s *Sample) float64 { return float64(s.Conntrack.Errors) }),
		{
			name: "fairlead_conntrack_gc_deleted_total", kind: prometheus.CounterValue, labels: []string{"cause"},
			help: "Flows that were forgotten: they were idle for as long as they may be, or their backend is gone.",
			read: func(s *Sample, put put) {
				put(float64(s.Conntrack.Idle), "idle")
				put(float64(s.Conntrack.Stale), "backend-gone")
			},
		},
		counter("fairlead_conntrack_opened_total", "Flows that were established, counted by the programs, until the last pass.",
			func(s *Sample) float64 { return float64(s.Conntrack.Opened) }),
		gauge("fairlead_conntrack_rows_limit", "Rows of established flows to which the room for them may grow; fairlead_map_max_entries has what there is.",
			func(s *Sample) float64 { return float64(s.Conntrack.Most) }),
		counter("fairlead_conntrack_growths_total", "Times that the room for established flows grew.",
			func(s *Sample) float64 { return float64(s.Conntrack.Growths) }),
		counter("fairlead_conntrack_growth_errors_total", "Times that it could not.",
			func(s *Sample) float64 { return float64(s.Conntrack.Failures) }),
		{
			name: "fairlead_conntrack_insert_failures_total", kind: prometheus.CounterValue, labels: []string{"hook"},
			help: "Times that there was no room for an established flow: it goes on among those that can be pushed out.",
			read: func(s *Sample, put put) {
				for _, c := range s.Kernel.Counters {
					if c.Reason == "flows-full" {
						put(float64(c.Packets), c.Hook)
					}
				}
			},
		},
		{
			name: "fairlead_early_fragments_total", kind: prometheus.CounterValue, labels: []string{"fate"},
			help: "Fragments that came before the first of their datagram: kept until it comes, returned then, lost before it could come, " +
				"or refused. Most of those kept are of datagrams that no frontend gets, and are neither returned nor lost.",
			read: func(s *Sample, put put) {
				f := &s.Kernel.Fragments
				put(float64(f.Kept), "kept")
				put(float64(f.Returned), "returned")
				put(float64(f.Lost), "lost")
				put(float64(f.Refused), "refused")
			},
		},
	}
}
