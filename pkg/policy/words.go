package policy

import (
	"fmt"

	"fairlead.io/fairlead/pkg/model"
)

// Object names the policy of a rule in words: "networkpolicy shop/web", or "clusternetworkpolicy
// admin/isolate", where the tier takes the place of a namespace. It is empty if no policy gave the
// rule.
func (r Rule) Object() string {
	if r.Policy.Name == "" {
		return ""
	}
	return ObjectName(r.Policy, r.Tier)
}

// ObjectName names a policy in words.
func ObjectName(name model.Name, tier model.Tier) string {
	switch tier {
	case model.TierAdmin:
		return "clusternetworkpolicy admin/" + name.Name
	case model.TierBaseline:
		return "clusternetworkpolicy baseline/" + name.Name
	}
	return "networkpolicy " + name.String()
}

// Position is the place of a rule in its policy, as people count: from 1. It is 0 if none of the
// policy's rules gave it.
func (r Rule) Position() int {
	if r.Why != ByRule {
		return 0
	}
	return r.Number + 1
}

// String tells in words which rule gave a verdict, or why else it was given.
func (r Rule) String() string {
	switch r.Why {
	case ByRule:
		label := ""
		if r.Label != "" {
			label = fmt.Sprintf(" %q", r.Label)
		}
		return fmt.Sprintf("%s, %s rule %d%s", r.Object(), r.Direction, r.Position(), label)
	case Isolated:
		return fmt.Sprintf("%s, %s: no rule accepts it", r.Object(), r.Direction)
	case OverQuota:
		return fmt.Sprintf("the policies of namespace %s exceed its quota, so they deny everything", r.Policy.Namespace)
	case UnknownNamespace:
		return fmt.Sprintf("the labels of namespace %s are not known yet", r.Policy.Namespace)
	case ToItself:
		return "a pod may talk to itself"
	case FromItsNode:
		return "the node of a pod may talk to it"
	case UnknownPod:
		return "it is not known yet which policies select the pod"
	case MalformedPacket:
		return "the packet does not tell which flow it belongs to"
	}
	return "no policy denies it"
}
