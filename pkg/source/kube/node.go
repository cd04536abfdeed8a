package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/pkg/source"
)

// Node is this node's object, and the little that an agent changes there. Whoever keeps pods waiting for it finds that out.
type Node struct {
	client rest.Interface
	name   string
}

// nodeTimeout bounds a request, which may be repeated.
const nodeTimeout = 10 * time.Second

// Admit takes away the taint that keeps pods from a node whose agent is not ready. The error is a conflict if somebody else
// changed the taints meanwhile.
func (n *Node) Admit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	var found corev1.Node
	if err := n.client.Get().Resource("nodes").Name(n.name).Do(ctx).Into(&found); err != nil {
		return fmt.Errorf("read the taints of Node %s: %w", n.name, err)
	}
	left := slices.DeleteFunc(slices.Clone(found.Spec.Taints), func(t corev1.Taint) bool { return t.Key == source.TaintAwaiting })
	if len(left) == len(found.Spec.Taints) {
		return nil
	}
	type step struct {
		Op    string         `json:"op"`
		Path  string         `json:"path"`
		Value []corev1.Taint `json:"value"`
	}
	patch, err := json.Marshal([]step{{"test", "/spec/taints", found.Spec.Taints}, {"replace", "/spec/taints", left}})
	if err != nil {
		return fmt.Errorf("encode the taints of Node %s: %w", n.name, err)
	}
	if err := n.client.Patch(types.JSONPatchType).Resource("nodes").Name(n.name).Body(patch).Do(ctx).Error(); err != nil {
		return fmt.Errorf("remove taint %s of Node %s: %w", source.TaintAwaiting, n.name, err)
	}
	return nil
}

// Connect says in the conditions that pods have a network here, as those wait for who know that a node begins without.
func (n *Node) Connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	now := metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, LastHeartbeatTime: now, LastTransitionTime: now,
		Reason: "FairleadIsReady", Message: "fairlead gives pods their network",
	}}}})
	if err != nil {
		return fmt.Errorf("encode the condition of Node %s: %w", n.name, err)
	}
	request := n.client.Patch(types.StrategicMergePatchType).Resource("nodes").Name(n.name).SubResource("status").Body(patch)
	if err := request.Do(ctx).Error(); err != nil {
		return fmt.Errorf("set condition %s of Node %s: %w", corev1.NodeNetworkUnavailable, n.name, err)
	}
	return nil
}
