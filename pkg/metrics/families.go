package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/reasons"
)

// put sends one value of a family.
type put = func(value float64, labels ...string)

func nodeFamilies() []family {
	return []family{
		gauge("fairlead_degraded", "1 while the node is degraded; \"fairlead status\" says why.",
			func(s *Sample) float64 { return number(s.Degraded) }),
		{
			name: "fairlead_program_attached", help: "1 while the program is attached, 0 while it should be but is not. No series while nothing needs it.",
			kind: prometheus.GaugeValue, labels: []string{"program"},
			read: func(s *Sample, put put) {
				for _, p := range s.Kernel.Programs {
					if !p.Idle {
						put(number(p.Attached), p.Name)
					}
				}
			},
		},
		{
			name: "fairlead_programs_proven", help: "1 while the agent's own test connections over the family meet its programs, 0 while they do not. " +
				"No series if these cannot tell.",
			kind: prometheus.GaugeValue, labels: []string{"family"},
			read: func(s *Sample, put put) {
				if s.Kernel.Attachment == nil {
					return
				}
				for _, p := range s.Kernel.Attachment.Proofs {
					if proves, known := p.Proven(); known {
						put(number(proves), p.Family)
					}
				}
			},
		},
		counter("fairlead_program_repairs_total", "Programs that were found detached or replaced, and were reattached.",
			func(s *Sample) float64 {
				return s.attachment(func(a *datapath.Attachment) float64 { return float64(a.Mended) })
			}),
		gauge("fairlead_map_pins_missing", "Maps whose pin somebody has removed and the agent has not restored yet. Programs go on with such a map; commands cannot read it.",
			func(s *Sample) float64 {
				if s.Kernel.Pins == nil {
					return 0
				}
				return float64(len(s.Kernel.Pins.Missing))
			}),
		counter("fairlead_map_pin_repairs_total", "Pins of maps that were found gone or replaced, and were restored.",
			func(s *Sample) float64 {
				if s.Kernel.Pins == nil {
					return 0
				}
				return float64(s.Kernel.Pins.Restored)
			}),
		gauge("fairlead_program_check_timestamp_seconds", "Time of the last check that the programs are at work; 0: never.",
			func(s *Sample) float64 {
				return s.attachment(func(a *datapath.Attachment) float64 { return seconds(a.Checked) })
			}),
		counted("fairlead_datapath_packets_total", "Packets and socket calls that the programs handled, by result. "+
			"With the reason \"none\" nothing went wrong.", func(c *reasons.Counter) uint64 { return c.Packets }),
		counted("fairlead_datapath_bytes_total", "Bytes that the programs handled, by result.",
			func(c *reasons.Counter) uint64 { return c.Bytes }),
		dropped("fairlead_drop_packets_total", "Dropped packets and refused socket calls; docs/drops.md has a cause and "+
			"a cure for each reason.", func(d *reasons.Drop) uint64 { return d.Packets }),
		dropped("fairlead_drop_bytes_total", "Bytes of dropped packets.", func(d *reasons.Drop) uint64 { return d.Bytes }),
		gauge("fairlead_opted_out_pods", "Pods of this node that have opted out of balancing at the socket.",
			func(s *Sample) float64 { return float64(s.OptOut.Pods) }),
		gauge("fairlead_opted_out_pods_not_covered", "Pods of this node that have opted out but are balanced at the socket "+
			"anyway; \"fairlead status\" says why.", func(s *Sample) float64 { return float64(s.OptOut.NotCovered) }),
		{
			name: "fairlead_networkpolicies", help: "NetworkPolicies in the cluster, none of which fairlead enforces. Counted every few " +
				"minutes; no series if unknown.",
			kind: prometheus.GaugeValue,
			read: func(s *Sample, put put) {
				if s.Policies != nil {
					put(float64(*s.Policies))
				}
			},
		},
		{
			name: "fairlead_problems", help: "Parts of objects that had to be ignored; the objects have events about them.",
			kind: prometheus.GaugeValue, labels: []string{"reason"},
			read: func(s *Sample, put put) {
				for reason, n := range s.Reasons {
					put(float64(n), reason)
				}
			},
		},
	}
}

func counted(name, help string, value func(*reasons.Counter) uint64) family {
	return family{
		name: name, help: help, kind: prometheus.CounterValue, labels: []string{"hook", "reason"},
		read: func(s *Sample, put put) {
			for i := range s.Kernel.Counters {
				c := &s.Kernel.Counters[i]
				put(float64(value(c)), c.Hook, c.Reason)
			}
		},
	}
}

func dropped(name, help string, value func(*reasons.Drop) uint64) family {
	return family{
		name: name, help: help, kind: prometheus.CounterValue, labels: []string{"hook", "reason"},
		read: func(s *Sample, put put) {
			for _, d := range reasons.Drops(s.Kernel.Counters) {
				if d.Stops {
					put(float64(value(&d)), d.Hook, d.Reason)
				}
			}
		},
	}
}

func mapFamilies() []family {
	return []family{
		ofMaps("fairlead_map_entries", "Rows in use, for maps that count them.",
			func(m *mapstats.Map) (float64, bool) {
				if m.Entries == nil {
					return 0, false
				}
				return float64(*m.Entries), true
			}),
		ofMaps("fairlead_map_max_entries", "Rows that fit, for maps with a limit of their own.",
			func(m *mapstats.Map) (float64, bool) { return float64(m.Capacity), m.Capacity > 0 }),
		ofMaps("fairlead_map_pressure_ratio", "Rows in use divided by rows that fit. Maps that can grow do so at 1, ct and affinity at 0.5. Maps with "+
			"fairlead_map_evictions_total evict rows near 1, and so do policy_pending and policy_denials. policy_pods and policy_flows do not grow.",
			func(m *mapstats.Map) (float64, bool) { return m.Pressure, m.Entries != nil }),
		ofCountedMaps("fairlead_map_evictions_total", "Rows evicted for lack of room, as counted by the programs: never too many, and some seconds late. "+
			"ct_pending: connections fail to open; look for a flood or raise conntrack-max. affinity: clients change backends; the map "+
			"grows to a 64th of the memory; beyond that, spread the clients over more nodes. frags: fragmented datagrams are lost; keep to the path's MTU.",
			func(m *mapstats.Map) (float64, bool) {
				if m.Evictions == nil {
					return 0, false
				}
				return float64(*m.Evictions), true
			}),
		ofMaps("fairlead_map_memory_bytes", "Memory of the map, as accounted by the kernel.",
			func(m *mapstats.Map) (float64, bool) { return float64(m.Memory), true }),
		gauge("fairlead_services", "Services in the maps; each port and address family counts.",
			func(s *Sample) float64 { return float64(s.Stats.Services) }),
		gauge("fairlead_frontends", "Frontends: addresses and ports that lead to a service.",
			func(s *Sample) float64 { return float64(s.Stats.Frontends) }),
		gauge("fairlead_backends", "Backends of the services.",
			func(s *Sample) float64 { return float64(s.Stats.Backends) }),
		gauge("fairlead_slots", "Slots of the services' tables, including the rounding up of their lengths.",
			func(s *Sample) float64 { return float64(s.Stats.Slots) }),
	}
}

func ofMaps(name, help string, value func(*mapstats.Map) (float64, bool)) family {
	return family{
		name: name, help: help, kind: prometheus.GaugeValue, labels: []string{"map"},
		read: func(s *Sample, put put) {
			for i := range s.Kernel.Maps {
				m := &s.Kernel.Maps[i]
				if v, ok := value(m); ok {
					put(v, m.Name)
				}
			}
		},
	}
}

func ofCountedMaps(name, help string, value func(*mapstats.Map) (float64, bool)) family {
	f := ofMaps(name, help, value)
	f.kind = prometheus.CounterValue
	return f
}

func reconcileFamilies() []family {
	count := func(name, help string, value func(*Sample) uint64) family {
		return counter(name, help, func(s *Sample) float64 { return float64(value(s)) })
	}
	return []family{
		count("fairlead_reconcile_passes_total", "Passes over changed objects.", func(s *Sample) uint64 { return s.Stats.Passes }),
		count("fairlead_reconcile_compiles_total", "Objects compiled.", func(s *Sample) uint64 { return s.Stats.Compiled }),
		count("fairlead_reconcile_writes_total", "Rows written to the maps.", func(s *Sample) uint64 { return s.Stats.Writes }),
		count("fairlead_reconcile_errors_total", "Errors; whatever failed is retried.", func(s *Sample) uint64 { return s.Stats.Errors }),
		count("fairlead_reconcile_growths_total", "Maps replaced by larger ones.",
			func(s *Sample) uint64 { return s.Stats.Growths }),
		count("fairlead_reconcile_barriers_total", "Waits for readers.",
			func(s *Sample) uint64 { return s.Stats.Barriers }),
		gauge("fairlead_reconcile_pending", "Objects and rows that wait for a retry, for readers, or for the source to be complete.",
			func(s *Sample) float64 { return float64(s.Stats.Pending) }),
		{
			name: "fairlead_namespace_quota_wanted", kind: prometheus.GaugeValue, labels: []string{"quota"},
			help: "How much of a quota the Services of one namespace want together, where that is most; fairlead status names the namespace. " +
				"Above fairlead_namespace_quota_limit its youngest Services are not served.",
			read: func(s *Sample, put put) {
				for _, use := range s.Stats.Quotas {
					if use.Quota != "" { // the maps exist
						put(float64(use.Wanted), use.Quota)
					}
				}
			},
		},
		{
			name: "fairlead_namespace_quota_limit", kind: prometheus.GaugeValue, labels: []string{"quota"},
			help: "How much the Services of one namespace may have together, by --namespace-quota; 0: no limit.",
			read: func(s *Sample, put put) {
				for _, use := range s.Stats.Quotas {
					if use.Quota != "" { // the maps exist
						put(float64(use.Limit), use.Quota)
					}
				}
			},
		},
		gauge("fairlead_reconcile_oldest_change_age_seconds", "How long the oldest change has been waiting to reach the maps; 0: none.",
			func(s *Sample) float64 { return age(s.Waiting) }),
		gauge("fairlead_reconcile_last_pass_timestamp_seconds", "Start of the last pass that had something to compile; 0: never.",
			func(s *Sample) float64 { return seconds(s.Stats.LastPass) }),
		gauge("fairlead_reconcile_last_settled_timestamp_seconds", "Last time that a pass left nothing to retry; 0: never.",
			func(s *Sample) float64 { return seconds(s.Stats.LastApplied) }),
		count("fairlead_verify_checks_total", "Checks of the maps against what they should contain.",
			func(s *Sample) uint64 { return s.Stats.Checks }),
		count("fairlead_verify_damage_total", "Differences found by the checks.", func(s *Sample) uint64 { return s.Stats.Damage }),
		count("fairlead_verify_repaired_total", "Differences that were repaired.", func(s *Sample) uint64 { return s.Stats.Repaired }),
		gauge("fairlead_verify_last_check_timestamp_seconds", "End of the last check; 0: never.",
			func(s *Sample) float64 { return seconds(s.Stats.LastCheck) }),
	}
}

func sourceFamilies() []family {
	ofKinds := func(kind prometheus.ValueType, name, help string, value func(*Kind) float64) family {
		return family{
			name: name, help: help, kind: kind, labels: []string{"kind"},
			read: func(s *Sample, put put) {
				for i := range s.Source.Kinds {
					put(value(&s.Source.Kinds[i]), s.Source.Kinds[i].Name)
				}
			},
		}
	}
	return []family{
		ofKinds(prometheus.GaugeValue, "fairlead_source_synced", "1 once all objects of the kind have been read.",
			func(k *Kind) float64 { return number(k.Synced) }),
		ofKinds(prometheus.CounterValue, "fairlead_source_lists_total", "Complete lists of the objects of the kind.",
			func(k *Kind) float64 { return float64(k.Lists) }),
		ofKinds(prometheus.CounterValue, "fairlead_source_request_failures_total", "Failed requests for objects of the kind.",
			func(k *Kind) float64 { return float64(k.Failures) }),
		gauge("fairlead_source_errors", "Kinds of objects, or files, that cannot be read now.",
			func(s *Sample) float64 { return float64(s.Source.Errors) }),
		gauge("fairlead_source_last_change_timestamp_seconds", "Time of the last change to an object; 0: never.",
			func(s *Sample) float64 { return seconds(s.Source.LastChange) }),
		counter("fairlead_events_dropped_total", "Events about objects that could not be posted in time.",
			func(s *Sample) float64 { return float64(s.Source.EventsDropped) }),
	}
}
