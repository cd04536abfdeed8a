package source

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"fairlead.io/fairlead/pkg/model"
)

// Limits of a selector in an object, which is matched against every pod of its namespace again and
// again.
const (
	maxRequirements   = 16
	maxSelectorValues = 32
)

// ParseSelector parses a selector in kubectl's syntax, such as "app in (web, api), tier!=test". An
// empty text has no requirements.
func ParseSelector(text string) (model.Selector, error) {
	all, err := labels.ParseToRequirements(text)
	if err != nil {
		return nil, fmt.Errorf("parse selector: %w", err)
	}
	return requirements(all), nil
}

// podSelector translates a label selector.
func podSelector(in *metav1.LabelSelector) (model.Selector, error) {
	if n := len(in.MatchLabels) + len(in.MatchExpressions); n > maxRequirements {
		return nil, fmt.Errorf("it has %d requirements, at most %d are allowed", n, maxRequirements)
	}
	for i := range in.MatchExpressions {
		if n := len(in.MatchExpressions[i].Values); n > maxSelectorValues {
			return nil, fmt.Errorf("matchExpressions[%d] has %d values, at most %d are allowed",
				i, n, maxSelectorValues)
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(in)
	if err != nil {
		return nil, err
	}
	all, _ := selector.Requirements()
	return requirements(all), nil
}

func requirements(all labels.Requirements) model.Selector {
	var out model.Selector
	for i := range all {
		out = append(out, model.Requirement{Label: all[i].Key(), Operator: operator(all[i].Operator()), Values: sets(&all[i])})
	}
	// Sort, because the same object would otherwise look changed.
	slices.SortFunc(out, func(a, b model.Requirement) int {
		return cmp.Or(cmp.Compare(a.Label, b.Label), cmp.Compare(a.Operator, b.Operator), slices.Compare(a.Values, b.Values))
	})
	return out
}

// sets returns the values of a requirement, or nil if it has none.
func sets(r *labels.Requirement) []string {
	if r.Values().Len() == 0 {
		return nil
	}
	return r.Values().List() // sorted
}

func operator(of selection.Operator) model.Operator {
	switch of {
	case selection.NotIn, selection.NotEquals:
		return model.NotIn
	case selection.Exists:
		return model.Present
	case selection.DoesNotExist:
		return model.Absent
	case selection.GreaterThan:
		return model.Greater
	case selection.LessThan:
		return model.Less
	}
	return model.In // =, == and in
}
