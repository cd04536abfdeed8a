package file

import (
	"errors"
	"fmt"

	"fairlead.io/fairlead/pkg/model"
)

// Policies translates the NetworkPolicies and ClusterNetworkPolicies of a file, and leaves out other objects that
// may be in manifests.
// Its error says what is wrong, and in which line if that is known.
func Policies(name string, data []byte) ([]*model.NetworkPolicy, error) {
	objects, err := parse(name, data, target{policies: true})
	var bad *FileError
	if errors.As(err, &bad) {
		bad.File = name
		return nil, bad
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var list []*model.NetworkPolicy
	for i := range objects {
		if policy, is := objects[i].value.(*model.NetworkPolicy); is {
			list = append(list, policy)
		}
	}
	if len(list) == 0 {
		return nil, errors.New(name + ": there is neither a NetworkPolicy nor a ClusterNetworkPolicy in it")
	}
	return list, nil
}
