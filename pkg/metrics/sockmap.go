package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"fairlead.io/fairlead/pkg/observe"
)

// sockmapFamilies are about connections of the node that go past TCP.
func sockmapFamilies() []family {
	one := func(kind prometheus.ValueType, name, help string, value func(*observe.SockmapStatus) float64) family {
		return family{name: name, help: help, kind: kind, read: func(s *Sample, put put) {
			if s.Sockmap != nil {
				put(value(s.Sockmap))
			}
		}}
	}
	passed := func(name, help string, value func(observe.SockmapTally) uint64) family {
		return family{name: name, help: help, kind: prometheus.CounterValue, labels: []string{"reason"}, read: func(s *Sample, put put) {
			if s.Sockmap == nil {
				return
			}
			for reason, tally := range s.Sockmap.Passed {
				put(float64(value(tally)), reason)
			}
		}}
	}
	return []family{
		one(prometheus.GaugeValue, "fairlead_sockmap_on", "1 while connections of this node may go past TCP.", func(s *observe.SockmapStatus) float64 {
			return number(s.On && !s.Held && s.Error == "")
		}),
		one(prometheus.GaugeValue, "fairlead_sockmap_sockets", "Sockets that are in the map, whose messages may go past TCP.",
			func(s *observe.SockmapStatus) float64 { return float64(s.Sockets) }),
		one(prometheus.CounterValue, "fairlead_sockmap_watched_connections_total", "Connections of which both ends are here and may take part.",
			func(s *observe.SockmapStatus) float64 { return float64(s.Watched) }),
		one(prometheus.CounterValue, "fairlead_sockmap_admitted_sockets_total", "Sockets that were put into the map.",
			func(s *observe.SockmapStatus) float64 { return float64(s.Admitted) }),
		one(prometheus.CounterValue, "fairlead_sockmap_left_sockets_total", "Sockets that were taken out of the map before they closed.",
			func(s *observe.SockmapStatus) float64 { return float64(s.Left) }),
		one(prometheus.CounterValue, "fairlead_sockmap_full_total", "Connections that go by TCP since there was no room to note them.",
			func(s *observe.SockmapStatus) float64 { return float64(s.Full) }),
		one(prometheus.CounterValue, "fairlead_sockmap_redirected_messages_total", "Messages that went past TCP.",
			func(s *observe.SockmapStatus) float64 { return float64(s.Redirected.Count) }),
		one(prometheus.CounterValue, "fairlead_sockmap_redirected_bytes_total", "Bytes that went past TCP.",
			func(s *observe.SockmapStatus) float64 { return float64(s.Redirected.Bytes) }),
		passed("fairlead_sockmap_passed_messages_total", "Messages of sockets in the map that went by TCP all the same, and why.",
			func(t observe.SockmapTally) uint64 { return t.Count }),
		passed("fairlead_sockmap_passed_bytes_total", "Bytes of sockets in the map that went by TCP all the same, and why.",
			func(t observe.SockmapTally) uint64 { return t.Bytes }),
		{
			name: "fairlead_sockmap_excluded_connections_total", help: "Connections that go by TCP for good, and why.",
			kind: prometheus.CounterValue, labels: []string{"reason"}, read: func(s *Sample, put put) {
				if s.Sockmap == nil {
					return
				}
				for reason, n := range s.Sockmap.Excluded {
					put(float64(n), reason)
				}
			},
		},
		{
			name: "fairlead_sockmap_checks_total", help: "Connections that the agent made to itself past TCP, by whether all came as it was sent.",
			kind: prometheus.CounterValue, labels: []string{"outcome"}, read: func(s *Sample, put put) {
				if s.Sockmap != nil {
					put(float64(s.Sockmap.Checks.Passed), "passed")
					put(float64(s.Sockmap.Checks.Failed), "failed")
				}
			},
		},
	}
}
