package oracle

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// compare gets both answers for one state from scratch, and returns the difference.
func compare(on node, s *state) string {
	return difference(newUpstream(on).apply(s, newCoverage()), newOurs(on).apply(s))
}

// shrink removes things from a state that shows a difference, as long as it still shows one.
func shrink(on node, s *state) *state {
	still := func(smaller *state) bool {
		_, _, ambiguous := smaller.ambiguity()
		return !ambiguous && compare(on, smaller) != ""
	}
	for progress := true; progress; {
		progress = false
		for _, smaller := range smallerStates(s) {
			if still(smaller) {
				s, progress = smaller, true
				break
			}
		}
	}
	return s
}

// smallerStates returns the states that lack one thing.
func smallerStates(s *state) []*state {
	var out []*state
	for i := range s.slices {
		out = append(out, &state{s.service, slices.Delete(slices.Clone(s.slices), i, i+1)})
	}
	for i, slice := range s.slices {
		for _, smaller := range lessOne[discoveryv1.EndpointSlice](slice) {
			list := slices.Clone(s.slices)
			list[i] = smaller
			out = append(out, &state{s.service, list})
		}
	}
	for _, smaller := range lessOne[corev1.Service](s.service) {
		out = append(out, &state{smaller, s.slices})
	}
	return out
}

// required lists the fields that shrink keeps: an API server would not accept an object without
// them.
func required(field string) bool {
	return slices.Contains([]string{
		"apiVersion", "kind", "name", "namespace", "type", "clusterIP", "clusterIPs", "ipFamilies", "port", "protocol",
		"addressType", "addresses", "sessionAffinityConfig", "kubernetes.io/service-name",
	}, field)
}

// lessOne returns copies of an object, each without one field or one list element.
func lessOne[T any](object *T) []*T {
	b, err := json.Marshal(object)
	if err != nil {
		panic(fmt.Errorf("encode object: %w", err))
	}
	var tree any
	if err := json.Unmarshal(b, &tree); err != nil {
		panic(fmt.Errorf("decode object: %w", err))
	}
	var out []*T
	take(tree, func() {
		b, err := json.Marshal(tree)
		if err != nil {
			panic(fmt.Errorf("encode object: %w", err))
		}
		smaller := new(T)
		if err := json.Unmarshal(b, smaller); err != nil {
			panic(fmt.Errorf("decode object: %w", err))
		}
		if !reflect.DeepEqual(smaller, object) { // some fields are written even when empty
			out = append(out, smaller)
		}
	})
	return out
}

// take removes one thing after another from a tree, calls visit without it, and puts it back.
func take(tree any, visit func()) {
	object, ok := tree.(map[string]any)
	if !ok {
		return
	}
	for _, field := range slices.Sorted(maps.Keys(object)) {
		value := object[field]
		if required(field) {
			continue
		}
		delete(object, field)
		visit()
		object[field] = value
		list, ok := value.([]any)
		if !ok {
			take(value, visit)
			continue
		}
		for i := range list {
			object[field] = slices.Delete(slices.Clone(list), i, i+1)
			visit()
		}
		object[field] = list
		for i := range list {
			take(list[i], visit)
		}
	}
}
