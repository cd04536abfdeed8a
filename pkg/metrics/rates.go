package metrics

import "github.com/prometheus/client_golang/prometheus"

// Rate is the limit and the traffic of one pod in one direction, or of several pods together.
type Rate struct {
	RateOf
	Limit   uint64 // bytes a second
	Passed  uint64 // bytes
	Dropped uint64 // packets
	Marked  uint64 // packets
}

// RateOf says whose rate it is: one pod's; all pods' of a namespace if Pod is empty; or all pods'
// of the node if Namespace is empty too.
type RateOf struct {
	Namespace, Pod string
	Direction      string // egress or ingress
}

// whose ends the help of every family of rates. It explains the labels.
const whose = " A series without a pod is for all pods of the namespace on this node together, and one with neither is for all pods of the node."

// rateFamilies describe pods that have rates, and the queues where their packets wait. The number of series grows with these pods.
func rateFamilies() []family {
	of := func(kind prometheus.ValueType, name, help string, value func(*Rate) uint64) family {
		return family{name: name, help: help + whose, kind: kind, labels: []string{"namespace", "pod", "direction"}, read: func(s *Sample, put put) {
			for i := range s.Rates {
				r := &s.Rates[i]
				put(float64(value(r)), r.Namespace, r.Pod, r.Direction)
			}
		}}
	}
	return []family{
		of(prometheus.GaugeValue, "fairlead_bandwidth_rate_bytes", "Rate of a pod, in bytes per second.", func(r *Rate) uint64 { return r.Limit }),
		of(prometheus.CounterValue, "fairlead_bandwidth_bytes_total", "Bytes of frames that passed, of traffic with a rate.", func(r *Rate) uint64 { return r.Passed }),
		of(prometheus.CounterValue, "fairlead_bandwidth_dropped_packets_total", "Packets dropped because they would have had to wait too long to keep to a rate.",
			func(r *Rate) uint64 { return r.Dropped }),
		of(prometheus.CounterValue, "fairlead_bandwidth_marked_packets_total", "Packets marked to tell their sender that they had to wait to keep to a rate.",
			func(r *Rate) uint64 { return r.Marked }),
		{
			name: "fairlead_bandwidth_device_queued", kind: prometheus.GaugeValue, labels: []string{"device"},
			help: "1 if packets of pods with a rate wait at the device until they may leave, 0 if they cannot, so that drops alone keep the rates there; " +
				"\"fairlead status\" says why.",
			read: func(s *Sample, put put) {
				if s.Bandwidth == nil {
					return
				}
				for _, name := range s.Bandwidth.Devices {
					put(1, name)
				}
				for name := range s.Bandwidth.Lacking {
					put(0, name)
				}
			},
		},
		{
			name: "fairlead_bandwidth_queue_dropped_packets_total", kind: prometheus.CounterValue,
			help: "Packets that found no room in the queues where they wait until they may leave, or were scheduled too far ahead by their socket, of the queues that are there now.",
			read: func(s *Sample, put put) {
				if s.Bandwidth != nil {
					put(float64(s.Bandwidth.Dropped))
				}
			},
		},
	}
}
