package metrics

import "github.com/prometheus/client_golang/prometheus"

// podFamilies describe the pod network. They have no series with --pod-network=off.
func podFamilies() []family {
	return []family{
		{
			name: "fairlead_ipam_addresses", kind: prometheus.GaugeValue, labels: []string{"family", "state"},
			help: "Addresses for pods of this node: used, cooling (their pod has just gone), and free.",
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
		ofPods(prometheus.CounterValue, "fairlead_cni_gc_reclaimed_total", "Pod attachments that were never released, and were reclaimed.",
			func(s *Sample) float64 { return float64(s.Pods.Reclaimed) }),
		ofPods(prometheus.CounterValue, "fairlead_pod_route_repairs_total", "Pods whose lost routes were restored.",
			func(s *Sample) float64 { return float64(s.Pods.Mended) }),
		ofPods(prometheus.GaugeValue, "fairlead_pods_attached", "Pod interfaces attached to the network.",
			func(s *Sample) float64 { return float64(s.Pods.Pods) }),
		ofPods(prometheus.GaugeValue, "fairlead_pods_limited", "Pod interfaces with a rate for what they send or receive.",
			func(s *Sample) float64 { return float64(s.Pods.Limited) }),
		ofPods(prometheus.GaugeValue, "fairlead_pods_bbr", "Pod interfaces whose new connections use the congestion control BBR.",
			func(s *Sample) float64 { return float64(s.Pods.BBR) }),
		ofFabric(prometheus.GaugeValue, "fairlead_fabric_routes", "Routes to pods on other nodes, and routes that block this node's pod addresses without a pod.",
			func(s *Sample) float64 { return float64(s.Fabric.Routes) }),
		ofFabric(prometheus.GaugeValue, "fairlead_fabric_refused_networks", "Networks that nodes claim for their pods, but that get no route.",
			func(s *Sample) float64 { return float64(len(s.Fabric.Refused)) }),
		ofFabric(prometheus.CounterValue, "fairlead_fabric_repairs_total", "Lost routes and neighbors on the way to other nodes that were restored.",
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
