package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"fairlead.io/fairlead/pkg/sockmap"
)

// sockmapFamilies describe connections within the node that bypass TCP.
func sockmapFamilies() []family {
	known := func(s *Sample) *sockmap.Status {
		if s.Sockmap == nil || s.Sockmap.Unread != "" {
			return nil // counters that are missing for a while are not counters that begin again
		}
		return s.Sockmap
	}
	one := func(kind prometheus.ValueType, name, help string, value func(*sockmap.Status) float64) family {
		return family{name: name, help: help, kind: kind, read: func(s *Sample, put put) {
			if status := known(s); status != nil {
				put(value(status))
			}
		}}
	}
	passed := func(name, help string, value func(sockmap.Tally) uint64) family {
		return family{name: name, help: help, kind: prometheus.CounterValue, labels: []string{"reason"}, read: func(s *Sample, put put) {
			if status := known(s); status != nil {
				for reason, tally := range status.Passed {
					put(float64(value(tally)), reason)
				}
			}
		}}
	}
	return []family{
		one(prometheus.GaugeValue, "fairlead_sockmap_on", "1 while connections of this node may bypass TCP.", func(s *sockmap.Status) float64 {
			return number(s.On && !s.Held && s.Error == "")
		}),
		one(prometheus.GaugeValue, "fairlead_sockmap_sockets", "Sockets in the map, whose messages may bypass TCP.",
			func(s *sockmap.Status) float64 { return float64(s.Sockets) }),
		one(prometheus.CounterValue, "fairlead_sockmap_watched_connections_total", "Connections whose ends are both on this node and may take part.",
			func(s *sockmap.Status) float64 { return float64(s.Watched) }),
		one(prometheus.CounterValue, "fairlead_sockmap_admitted_sockets_total", "Sockets put into the map.",
			func(s *sockmap.Status) float64 { return float64(s.Admitted) }),
		one(prometheus.CounterValue, "fairlead_sockmap_left_sockets_total", "Sockets taken out of the map before they closed.",
			func(s *sockmap.Status) float64 { return float64(s.Left) }),
		one(prometheus.CounterValue, "fairlead_sockmap_full_total", "Times that there was no room to record a connection, which uses TCP and tries again.",
			func(s *sockmap.Status) float64 { return float64(s.Full) }),
		one(prometheus.CounterValue, "fairlead_sockmap_redirected_messages_total", "Messages that bypassed TCP.",
			func(s *sockmap.Status) float64 { return float64(s.Redirected.Count) }),
		one(prometheus.CounterValue, "fairlead_sockmap_redirected_bytes_total", "Bytes that bypassed TCP.",
			func(s *sockmap.Status) float64 { return float64(s.Redirected.Bytes) }),
		passed("fairlead_sockmap_passed_messages_total", "Messages of sockets in the map that went by TCP anyway, or were not sent at all (lost), by reason.",
			func(t sockmap.Tally) uint64 { return t.Count }),
		passed("fairlead_sockmap_passed_bytes_total", "Bytes of sockets in the map that went by TCP anyway, or were not sent at all (lost), by reason.",
			func(t sockmap.Tally) uint64 { return t.Bytes }),
		{
			name: "fairlead_sockmap_excluded_connections_total", help: "Connections that stay with TCP for good, by reason.",
			kind: prometheus.CounterValue, labels: []string{"reason"}, read: func(s *Sample, put put) {
				if status := known(s); status != nil {
					for reason, n := range status.Excluded {
						put(float64(n), reason)
					}
				}
			},
		},
		{
			name: "fairlead_sockmap_checks_total", help: "Test connections of the agent to itself that bypass TCP, by whether everything arrived as sent.",
			kind: prometheus.CounterValue, labels: []string{"outcome"}, read: func(s *Sample, put put) {
				if status := known(s); status != nil {
					put(float64(status.Checks.Passed), "passed")
					put(float64(status.Checks.Failed), "failed")
				}
			},
		},
	}
}
