package optout

import (
	"errors"
	"fmt"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Identity finds the keys by which programs recognize the processes of a pod.
type Identity interface {
	// Find returns the keys of a pod. It is called again after every change, so it must be cheap
	// for pods that it knows. It returns ErrUnknown for a pod that it cannot find in the current
	// state.
	Find(pod *model.Pod) ([]maps.OptoutKey, error)

	// Refresh is called before a series of calls to Find.
	Refresh()

	// Dirs returns the directories whose changes may change what Find returns.
	Dirs() []string
}

// ErrUnknown is wrapped by the error of Find, which says why there are no keys.
var ErrUnknown = errors.New("not covered")

// identities tries several Identities in order.
type identities []Identity

func (list identities) find(pod *model.Pod) ([]maps.OptoutKey, error) {
	err := error(nil)
	for _, identity := range list {
		keys, failed := identity.Find(pod)
		switch {
		case failed == nil:
			return keys, nil
		case err == nil:
			err = failed
		default:
			err = fmt.Errorf("%w; %w", err, failed)
		}
	}
	return nil, err
}
