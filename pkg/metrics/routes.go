package metrics

// routeFamilies describe the routes of flows, which flows look up again after a change.
func routeFamilies() []family {
	return []family{
		counter("fairlead_route_invalidations_total",
			"Times that all flows were told to look up their routes again, because routes, rules, devices, addresses or neighbors changed.",
			func(s *Sample) float64 { return float64(s.Routes.Changes) }),
		counter("fairlead_route_neighbor_confirmations_total", "Times that a neighbor was confirmed without a change; flows were not told.",
			func(s *Sample) float64 { return float64(s.Routes.Flaps) }),
		counter("fairlead_route_follow_errors_total", "Times that route changes could not be followed; then every flow looks up its route once a second.",
			func(s *Sample) float64 { return float64(s.Routes.Errors) }),
		gauge("fairlead_route_following", "1 while route changes are followed.", func(s *Sample) float64 {
			if s.Routes.Following {
				return 1
			}
			return 0
		}),
	}
}
