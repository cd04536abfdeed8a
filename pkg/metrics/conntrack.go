package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"fairlead.io/fairlead/pkg/conntrack"
)

// conntrackFamilies describe the flows in the conntrack maps.
func conntrackFamilies() []family {
	return []family{
		{
			name: "fairlead_conntrack_entries", kind: prometheus.GaugeValue, labels: []string{"protocol", "state"},
			help: "Rows of flows that the last pass saw; a flow has one for each direction.",
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
		counter("fairlead_conntrack_gc_seconds_total", "Total duration of all passes over the flows.",
			func(s *Sample) float64 { return s.Conntrack.Took.Seconds() }),
		gauge("fairlead_conntrack_gc_duration_seconds", "Duration of the last pass over the flows.",
			func(s *Sample) float64 { return s.Conntrack.LastTook.Seconds() }),
		gauge("fairlead_conntrack_gc_last_pass_timestamp_seconds", "End of the last pass over the flows; 0: never.",
			func(s *Sample) float64 { return seconds(s.Conntrack.LastPass) }),
		counter("fairlead_conntrack_gc_errors_total", "Errors in passes over the flows; flows that are over then stay longer.",
			func(s *Sample) float64 { return float64(s.Conntrack.Errors) }),
		{
			name: "fairlead_conntrack_gc_deleted_total", kind: prometheus.CounterValue, labels: []string{"cause"},
			help: "Flows that were removed because they were idle for too long, or because their backend is gone.",
			read: func(s *Sample, put put) {
				put(float64(s.Conntrack.Idle), "idle")
				put(float64(s.Conntrack.Stale), "backend-gone")
			},
		},
		counter("fairlead_conntrack_opened_total", "Flows that had been established by the last pass, as counted by the programs.",
			func(s *Sample) float64 { return float64(s.Conntrack.Opened) }),
		gauge("fairlead_conntrack_rows_limit", "Maximum rows of established flows that the map may grow to; its size now is in fairlead_map_max_entries.",
			func(s *Sample) float64 { return float64(s.Conntrack.Most) }),
		counter("fairlead_conntrack_growths_total", "Times that the map of established flows grew.",
			func(s *Sample) float64 { return float64(s.Conntrack.Growths) }),
		counter("fairlead_conntrack_growth_errors_total", "Times that the map of established flows could not grow.",
			func(s *Sample) float64 { return float64(s.Conntrack.Failures) }),
		{
			name: "fairlead_conntrack_insert_failures_total", kind: prometheus.CounterValue, labels: []string{"hook"},
			help: "Times that an established flow did not fit; it stays among those that can be evicted.",
			read: func(s *Sample, put put) {
				for _, c := range s.Kernel.Counters {
					if c.Reason == "flows-full" {
						put(float64(c.Packets), c.Hook)
					}
				}
			},
		},
		{
			name: "fairlead_snat_ports_used", kind: prometheus.GaugeValue, labels: []string{"user"},
			help: "SNAT ports in use toward the destination that has most of them, as the last pass over the flows saw; fairlead status names it. " +
				"The user is one-pod (the pod that uses most), pods (all together), or others (all flows but those of pods to the outside).",
			read: func(s *Sample, put put) {
				for i, use := range s.Conntrack.Ports {
					put(float64(use.Used), conntrack.PortUserNames[i])
				}
			},
		},
		{
			name: "fairlead_snat_ports_limit", kind: prometheus.GaugeValue, labels: []string{"user"},
			help: "SNAT ports that there are toward each destination.",
			read: func(s *Sample, put put) {
				for i, use := range s.Conntrack.Ports {
					put(float64(use.Of), conntrack.PortUserNames[i])
				}
			},
		},
		{
			name: "fairlead_early_fragments_total", kind: prometheus.CounterValue, labels: []string{"fate"},
			help: "Fragments that arrived before the first of their datagram: stored until it arrives, returned then, lost before that, or " +
				"refused. Most of those stored belong to datagrams that are not for a frontend, and are neither returned nor lost.",
			read: func(s *Sample, put put) {
				f := &s.Kernel.Fragments
				put(float64(f.Stored), "stored")
				put(float64(f.Returned), "returned")
				put(float64(f.Lost), "lost")
				put(float64(f.Refused), "refused")
			},
		},
	}
}
