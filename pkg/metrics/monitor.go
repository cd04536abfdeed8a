package metrics

// monitorFamilies are about those who watch packets.
func monitorFamilies() []family {
	return []family{
		gauge("fairlead_monitor_clients", "Monitors that watch packets now; while there is none the programs tell nothing.",
			func(s *Sample) float64 { return float64(s.Monitor.Clients) }),
		counter("fairlead_monitor_events_total", "Events that the programs told monitors.",
			func(s *Sample) float64 { return float64(s.Monitor.Events) }),
		counter("fairlead_monitor_lost_events_total", "Events that monitors missed: there were too many, or they were not read in time.",
			func(s *Sample) float64 { return float64(s.Monitor.Lost) }),
	}
}
