package metrics

// routeFamilies are about the ways of packets, which flows ask for again after a change.
func routeFamilies() []family {
	return []family{
		counter("fairlead_route_invalidations_total",
			"Times that all flows were told to ask for their ways again, since routes, rules, devices, addresses or neighbours changed.",
			func(s *Sample) float64 { return float64(s.Routes.Changes) }),
		counter("fairlead_route_neighbour_confirmations_total", "Times that a neighbour was heard of without a change, which no flow was told of.",
			func(s *Sample) float64 { return float64(s.Routes.Flaps) }),
		counter("fairlead_route_follow_errors_total", "Times that changes could not be followed; every flow asks for its way once a second then.",
			func(s *Sample) float64 { return float64(s.Routes.Errors) }),
		gauge("fairlead_route_following", "1 while changes are followed.", func(s *Sample) float64 {
			if s.Routes.Following {
				return 1
			}
			return 0
		}),
	}
}
