package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"fairlead.io/fairlead/pkg/model"
)

// socketFamilies describe the sockets that were aborted because their backend is gone for good.
func socketFamilies() []family {
	return []family{
		{
			name: "fairlead_stale_sockets_aborted_total", kind: prometheus.CounterValue, labels: []string{"protocol"},
			help: "Sockets aborted because their backend is gone for good.",
			read: func(s *Sample, put put) {
				for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
					put(float64(s.Sockets.Aborted[protocol]), protocol.String())
				}
			},
		},
		counter("fairlead_stale_sockets_looks_total", "Searches for sockets whose backend is gone.",
			func(s *Sample) float64 { return float64(s.Sockets.Scans) }),
		counter("fairlead_stale_sockets_look_seconds_total", "Total duration of these searches.",
			func(s *Sample) float64 { return s.Sockets.Took.Seconds() }),
		counter("fairlead_stale_sockets_errors_total", "Times that finding or aborting such sockets failed; \"fairlead status\" says whether the kernel supports it.",
			func(s *Sample) float64 { return float64(s.Sockets.Errors) }),
	}
}
