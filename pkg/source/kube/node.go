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

// Node changes the little that the agent writes to this node's object, for clusters that keep pods
// away until the node is ready for them.
type Node struct {
	client rest.Interface
	name   string
}

// nodeTimeout bounds one request. The caller may repeat it.
const nodeTimeout = 10 * time.Second

// Admit removes the taint that keeps pods from a node whose agent is not ready. It returns a
// conflict if somebody else changed the taints meanwhile.
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

// Connect sets the condition NetworkUnavailable to false, for clusters that start a node with the
// condition true and keep pods away until it changes.
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
