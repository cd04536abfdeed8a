package source

import (
	"errors"
	"slices"
	"strings"

	"sigs.k8s.io/json"
)

// unread are the paths of fields of an object that were not read.
type unread []string

// maxUnread is how many the decoder notes. With as many, it is not known where the others are.
const maxUnread = 100

// unreadOf returns the paths that matter. Of metadata others are in charge, and its fields narrow no rule.
func unreadOf(list []error) unread {
	var out unread
	for _, err := range list {
		path := ""
		if field := json.FieldError(nil); errors.As(err, &field) {
			path = field.FieldPath()
		}
		if !strings.HasPrefix(path, "metadata.") {
			out = append(out, path)
		}
	}
	if len(list) >= maxUnread {
		out = append(out, "")
	}
	return out
}

// in returns those that are in what has a path, or are said to be it.
func (u unread) in(path string) (list unread) {
	for _, field := range u {
		if rest, in := strings.CutPrefix(field, path); in && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			list = append(list, field)
		}
	}
	return list
}

// except returns those that are in nothing that has one of the paths.
func (u unread) except(paths []string) unread {
	return slices.DeleteFunc(slices.Clone(u), func(field string) bool {
		return slices.ContainsFunc(paths, func(path string) bool { return len(unread{field}.in(path)) > 0 })
	})
}
