package metrics

// monitorFamilies describe the clients that watch packets.
func monitorFamilies() []family {
	return []family{
		gauge("fairlead_monitor_clients", "Monitors that watch packets now. Without any, the programs report no events.",
			func(s *Sample) float64 { return float64(s.Monitor.Clients) }),
		counter("fairlead_monitor_events_total", "Events that the programs reported to monitors.",
			func(s *Sample) float64 { return float64(s.Monitor.Events) }),
		counter("fairlead_monitor_lost_events_total", "Events that monitors missed, because there were too many or they were not read in time.",
			func(s *Sample) float64 { return float64(s.Monitor.Lost) }),
	}
}
