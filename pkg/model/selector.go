package model

import (
	"slices"
	"strconv"
)

// Selector selects objects by their labels: every Requirement has to hold, so an empty Selector
// selects all.
type Selector []Requirement

// Requirement is a condition on one label.
type Requirement struct {
	Label    string
	Operator Operator
	Values   []string // for In and NotIn; one number for Greater and Less
}

// Operator says how a label is compared.
type Operator uint8

// The operators. For an object without the label only NotIn and Absent hold.
const (
	In Operator = iota
	NotIn
	Present
	Absent
	Greater
	Less
)

// Selects reports whether an object with these labels is selected.
func (s Selector) Selects(labels map[string]string) bool {
	for i := range s {
		if !s[i].holds(labels) {
			return false
		}
	}
	return true
}

func (r *Requirement) holds(labels map[string]string) bool {
	value, there := labels[r.Label]
	switch r.Operator {
	case In:
		return there && slices.Contains(r.Values, value)
	case NotIn:
		return !there || !slices.Contains(r.Values, value)
	case Present:
		return there
	case Absent:
		return !there
	case Greater, Less:
		return there && r.compares(value)
	}
	return false
}

func (r *Requirement) compares(value string) bool {
	if len(r.Values) != 1 {
		return false
	}
	is, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return false
	}
	bound, err := strconv.ParseInt(r.Values[0], 10, 64)
	if err != nil {
		return false
	}
	if r.Operator == Greater {
		return is > bound
	}
	return is < bound
}
