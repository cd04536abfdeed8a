package metrics

import "github.com/prometheus/client_golang/prometheus"

// podFamilies are about the network that the agent gives pods; there are none where it gives none.
func podFamilies() []family {
	return []family{
		{
			name: "fairlead_ipam_addresses", kind: prometheus.GaugeValue, labels: []string{"family", "state"},
			help: "Addresses for pods of this node: used, cooling after their pod went, and free.",
			read: func(s *Sample, put put) {
				if s.Pods == nil {
					return
				}
				for family, count := range s.Pods.Families {
					put(float64(count.Used), family, "used")
					put(float64(count.Cooling), family, "cooling")
					put(count.Free, family, "free")
				}
			},
		},
		ofPods(prometheus.CounterValue, "fairlead_cni_gc_reclaimed_total", "Attachments of pods that nobody released, and that were taken back.",
			func(s *Sample) float64 { return float64(s.Pods.Reclaimed) }),
		ofPods(prometheus.CounterValue, "fairlead_pod_route_repairs_total", "Pods whose routes were lost, and came back.",
			func(s *Sample) float64 { return float64(s.Pods.Mended) }),
		ofPods(prometheus.GaugeValue, "fairlead_pods_attached", "Interfaces of pods that are attached to the network.",
			func(s *Sample) float64 { return float64(s.Pods.Pods) }),
		ofPods(prometheus.GaugeValue, "fairlead_pods_limited", "Interfaces of pods that are kept to a rate in what they send or get.",
			func(s *Sample) float64 { return float64(s.Pods.Limited) }),
		ofPods(prometheus.GaugeValue, "fairlead_pods_bbr", "Interfaces of pods whose new connections have the congestion control BBR.",
			func(s *Sample) float64 { return float64(s.Pods.BBR) }),
		ofFabric(prometheus.GaugeValue, "fairlead_fabric_routes", "Routes that lead to the pods of other nodes, and away from addresses of this node's without a pod.",
			func(s *Sample) float64 { return float64(s.Fabric.Routes) }),
		ofFabric(prometheus.GaugeValue, "fairlead_fabric_refused_networks", "Networks that nodes claim for their pods and to which nothing leads.",
			func(s *Sample) float64 { return float64(len(s.Fabric.Refused)) }),
		ofFabric(prometheus.CounterValue, "fairlead_fabric_repairs_total", "Routes and neighbours on the way to other nodes that were lost, and came back.",
			func(s *Sample) float64 { return float64(s.Fabric.Mended) }),
	}
}

func ofFabric(kind prometheus.ValueType, name, help string, value func(*Sample) float64) family {
	return family{name: name, help: help, kind: kind, read: func(s *Sample, put put) {
		if s.Fabric != nil {
			put(value(s))
		}
	}}
}

func ofPods(kind prometheus.ValueType, name, help string, value func(*Sample) float64) family {
	return family{name: name, help: help, kind: kind, read: func(s *Sample, put put) {
		if s.Pods != nil {
			put(value(s))
		}
	}}
}
