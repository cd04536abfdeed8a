package source

import (
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterPolicyAccepted is the type of the condition that says how a ClusterNetworkPolicy is read. The API names no types, so
// ours has our domain before it: two implementations that both write "Accepted" would overwrite each other without end.
const ClusterPolicyAccepted = "fairlead.io/Accepted"

// The reasons of the condition.
const (
	reasonAccepted         = "Accepted"
	reasonPartiallyInvalid = "PartiallyInvalid"
	reasonInvalid          = "Invalid"
)

// maxConditionText bounds what a hostile object adds to its own status. The API takes eight times that.
const maxConditionText = 4096

// ClusterPolicyCondition returns the condition that a ClusterNetworkPolicy should have, by what ClusterNetworkPolicy makes of
// it. It has no time yet.
func ClusterPolicyCondition(in *ClusterPolicy) metav1.Condition {
	policy, wrong := clusterNetworkPolicy(in)
	rules := len(in.Spec.Ingress) + len(in.Spec.Egress)
	out := metav1.Condition{
		Type: ClusterPolicyAccepted, Status: metav1.ConditionFalse, Reason: reasonInvalid, ObservedGeneration: in.Generation,
	}
	says := fmt.Sprintf("Not followed as written: %d of %d rules, which accept no more than what is right in them", wrong, rules)
	switch {
	case len(policy.Problems) == 0:
		out.Status, out.Reason = metav1.ConditionTrue, reasonAccepted
		says = fmt.Sprintf("Followed as written: %d of %d rules", rules, rules)
	case wrong < rules:
		out.Reason = reasonPartiallyInvalid
	}
	if rules == 0 {
		says = "It has no rules, so it does nothing"
	}
	var text strings.Builder
	text.WriteString(says)
	for i, problem := range policy.Problems {
		// Room is kept for the words that say what is left out.
		if text.Len()+len(problem.Message) > maxConditionText-64 {
			fmt.Fprintf(&text, "; %d more problems", len(policy.Problems)-i)
			break
		}
		text.WriteString([]string{": ", "; "}[min(i, 1)])
		text.WriteString(problem.Message)
	}
	text.WriteString(".")
	out.Message = text.String()
	return out
}

// ClusterPolicyHas returns the condition of ours that a ClusterNetworkPolicy has, or nil. What others have written there may
// have any form.
func ClusterPolicyHas(in *ClusterPolicy) *metav1.Condition {
	var status struct {
		Conditions []json.RawMessage `json:"conditions"`
	}
	if json.Unmarshal(in.Status, &status) != nil {
		return nil
	}
	for _, text := range status.Conditions {
		var condition metav1.Condition
		if json.Unmarshal(text, &condition) == nil && condition.Type == ClusterPolicyAccepted {
			return &condition
		}
	}
	return nil
}
