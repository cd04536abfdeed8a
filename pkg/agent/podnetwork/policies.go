package podnetwork

import (
	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/policies"
)

// Policies know about which pods there are policies.
type Policies interface {
	// Judged reports whether the programs have to ask what policies say about a pod. was is the answer
	// before.
	Judged(pod model.Name, uid string, was bool) bool
	// Wake says that devices of pods have come or gone.
	Wake()
}

// judged is that for a pod with these traits so far, which are nil for a new pod. Until it is known
// whether a policy is about a new pod, everything is denied to it.
func (n *Network) judged(pod cni.Pod, was *podnet.Traits) bool {
	name := model.Name{Namespace: pod.Namespace, Name: pod.Name}
	return n.Policies != nil && n.Policies.Judged(name, pod.UID, was == nil || was.Policy)
}

func (n *Network) registered() {
	if n.Policies != nil {
		n.Policies.Wake()
	}
}

// Decide treats each pod as Policies now say.
func (n *Network) Decide() error {
	if n == nil || n.pods == nil {
		return nil
	}
	return n.pods.Decide()
}

// Devices returns the devices of the pods that the plugin has set up.
func (n *Network) Devices() (list []policies.Device) {
	if n == nil || n.pods == nil {
		return nil
	}
	for _, record := range n.pods.Records() {
		if record.Pod.Name != "" {
			list = append(list, policies.Device{
				Pod: model.Name{Namespace: record.Pod.Namespace, Name: record.Pod.Name}, UID: record.Pod.UID, Index: uint32(record.Device.Index), Addrs: record.Addresses,
			})
		}
	}
	return list
}
