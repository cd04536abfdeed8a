package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/reasons"
)

// policyFamilies describe how policies are enforced. They have no series with --policies=off. How many rows their maps have is among
// the maps' families.
func policyFamilies() []family {
	one := func(kind prometheus.ValueType, name, help string, value func(*policies.Status) float64) family {
		return family{name: name, help: help, kind: kind, read: func(s *Sample, put put) {
			if s.Enforced != nil {
				put(value(s.Enforced))
			}
		}}
	}
	gauge := func(name, help string, value func(*policies.Status) int) family {
		return one(prometheus.GaugeValue, name, help, func(s *policies.Status) float64 { return float64(value(s)) })
	}
	return []family{
		{
			name: "fairlead_policy_objects", kind: prometheus.GaugeValue, labels: []string{"kind"},
			help: "Policies of the cluster that are known, of both kinds.",
			read: func(s *Sample, put put) {
				if s.Enforced != nil {
					put(float64(s.Enforced.NetworkPolicies), "networkpolicy")
					put(float64(s.Enforced.ClusterNetworkPolicies), "clusternetworkpolicy")
				}
			},
		},
		gauge("fairlead_policy_pods", "Pods of this node that policies are about.", func(s *policies.Status) int { return s.Pods }),
		gauge("fairlead_policy_cluster_pods", "Pods of the cluster whose labels and addresses are known; 0 while no policy names pods.",
			func(s *policies.Status) int { return s.ClusterPods }),
		gauge("fairlead_policy_subjects", "Sets of rules that pods of this node have; pods with the same rules share one.", func(s *policies.Status) int { return s.Subjects }),
		gauge("fairlead_policy_rules", "Rules that decide about pods of this node.", func(s *policies.Status) int { return s.Rules }),
		gauge("fairlead_policy_classes", "Classes that policies tell addresses apart by.", func(s *policies.Status) int { return s.Classes }),
		gauge("fairlead_policy_refused_namespaces", "Namespaces whose policies exceed their quota: the pods that these select are denied everything; \"fairlead status\" names the first.",
			func(s *policies.Status) int { return len(s.Refused) }),
		one(prometheus.GaugeValue, "fairlead_policy_audit", "1 if policies are only audited: what they would deny goes on.",
			func(s *policies.Status) float64 { return number(s.Mode == "audit") }),
		one(prometheus.GaugeValue, "fairlead_policy_in_force", "1 while the policies that are known are in force; 0 while changes of them cannot be written, or while "+
			"something that they depend on was not delivered yet. What was in force before stays so; \"fairlead status\" says what is missing.",
			func(s *policies.Status) float64 { return number(s.Error == "" && s.Waiting == "") }),
		one(prometheus.GaugeValue, "fairlead_policy_oldest_change_age_seconds", "How long the oldest change of policies, or of what they select by, has been waiting to be in force; 0: none.",
			func(s *policies.Status) float64 { return age(s.OldestChange) }),
		one(prometheus.GaugeValue, "fairlead_policy_generation", "Generation of the pod that got one last. A pod gets another one when something that was accepted may not be any longer; its flows are "+
			"then judged again.", func(s *policies.Status) float64 { return float64(s.Generation) }),
		one(prometheus.CounterValue, "fairlead_policy_updates_total", "Changes that were put in force.", func(s *policies.Status) float64 { return float64(s.Updates) }),
		one(prometheus.CounterValue, "fairlead_policy_errors_total", "Times that a change could not be put in force; it is tried again.",
			func(s *policies.Status) float64 { return float64(s.Errors) }),
		one(prometheus.GaugeValue, "fairlead_policy_last_update_timestamp_seconds", "Time of the last change that was put in force; 0: none yet.",
			func(s *policies.Status) float64 { return seconds(s.Written) }),
		{
			name: "fairlead_policy_denied_packets_total", kind: prometheus.CounterValue, labels: []string{"outcome"},
			help: "Packets that policies denied, each counted by the programs: dropped, or only audited and passed on.",
			read: func(s *Sample, put put) {
				if s.Enforced == nil || len(s.Kernel.Counters) == 0 { // missing for a while, they do not begin again
					return
				}
				dropped, audited := uint64(0), uint64(0)
				for i := range s.Kernel.Counters {
					switch c := &s.Kernel.Counters[i]; c.Reason {
					case reasons.Policy:
						dropped += c.Packets
					case reasons.PolicyAudit:
						audited += c.Packets
					}
				}
				put(float64(dropped), "dropped")
				put(float64(audited), "audited")
			},
		},
		{
			name: "fairlead_policy_denials", kind: prometheus.GaugeValue, labels: []string{"direction", "policy"},
			help: "About how many packets to (ingress) and from (egress) pods of this node each policy has denied, or would have if it is only audited, since it is what it is on this node: " +
				"the count of a rule ends with the rule and with the agent, may be evicted by those of others, and may miss some of its first packets. The policies with most are named, " +
				"namespaces taking turns; \"others\" are all the rest. Without a policy: no rule denied it, since it is not known yet which policies select the pod, or " +
				"the packet does not tell which flow it belongs to.",
			read: func(s *Sample, put put) {
				for _, d := range bounded(s.Denials) {
					put(float64(d.Packets), d.Direction, d.Policy)
				}
			},
		},
	}
}
