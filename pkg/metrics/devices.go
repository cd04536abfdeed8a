package metrics

import "github.com/prometheus/client_golang/prometheus"

// deviceFamilies describe the devices on which clients outside are served.
func deviceFamilies() []family {
	return []family{
		{
			name: "fairlead_device_attached", kind: prometheus.GaugeValue, labels: []string{"device", "hook", "mode"},
			help: "1 while the packet programs are attached to the device, 0 while they should be but are not. No series while nothing needs them. " +
				"The mode is tcx or clsact at tc, native or generic at XDP.",
			read: func(s *Sample, put put) {
				if s.Kernel.Outside == nil || s.Kernel.Outside.Idle {
					return
				}
				for _, d := range s.Kernel.Outside.Devices {
					put(number(d.TC != ""), d.Name, "tc", d.TC)
					if d.XDP != "" {
						put(1, d.Name, "xdp", d.XDP)
					}
				}
			},
		},
		counter("fairlead_device_repairs_total", "Programs that were found detached from a device, and were reattached.",
			func(s *Sample) float64 {
				if s.Kernel.Outside == nil {
					return 0
				}
				return float64(s.Kernel.Outside.Mended)
			}),
	}
}
