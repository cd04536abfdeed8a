package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Policies counts the NetworkPolicies of the cluster. The agent needs no more than their number, so
// it does not watch them: each of thousands of watches would be sent every change. A list limited
// to one object without its spec also says how many more there are.
type Policies struct{ client rest.Interface }

const (
	policiesTimeout = 10 * time.Second
	// oneOfList asks for a list whose objects have only their metadata.
	oneOfList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

func policiesGroup() schema.GroupVersion {
	return schema.GroupVersion{Group: "networking.k8s.io", Version: "v1"}
}

// Count asks the server for the number of NetworkPolicies.
func (p *Policies) Count(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, policiesTimeout)
	defer cancel()
	answer, err := p.client.Get().Resource("networkpolicies").SetHeader("Accept", oneOfList).
		VersionedParams(&metav1.ListOptions{Limit: 1}, metav1.ParameterCodec).Do(ctx).Raw()
	if err != nil {
		return 0, fmt.Errorf("count NetworkPolicies: %w", err)
	}
	var list struct {
		Metadata metav1.ListMeta   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(answer, &list); err != nil {
		return 0, fmt.Errorf("count NetworkPolicies: %w", err)
	}
	count := len(list.Items)
	if rest := list.Metadata.RemainingItemCount; rest != nil {
		count += int(*rest)
	}
	return count, nil
}
