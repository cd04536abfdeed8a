package optout

import (
	"errors"
	"fmt"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Identity is what the processes of a pod are told by. The pod network's plugin will know it of the pods that it has
// set up; of others it has to be found.
type Identity interface {
	// Find returns the keys of a pod. It is asked again whenever something changed, so it has to be cheap for a pod that
	// it knows. ErrUnknown is for a pod that it will not find as things are.
	Find(pod *model.Pod) ([]maps.OptoutKey, error)

	// Refresh is called before pods are asked for.
	Refresh()

	// Dirs returns the directories whose changes may change what Find answers.
	Dirs() []string
}

// ErrUnknown is wrapped by the error of a Find that has no keys; the error says why.
var ErrUnknown = errors.New("not covered")

// identities asks one after the other.
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
