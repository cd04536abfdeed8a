package podnetwork

import (
	"fmt"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/model"
)

// CIDRs returns the networks from which pods of this node get their addresses.
func CIDRs(cfg *config.Config, store *model.Store) ([]netip.Prefix, error) {
	if given := cfg.PodPrefixes(); len(given) > 0 {
		return given, nil
	}
	self := store.Self()
	switch {
	case len(self.PodCIDRs) > 0:
		return self.PodCIDRs, nil
	case self.UID == "":
		return nil, fmt.Errorf("the Node %s is not known yet, or does not exist; --pod-cidrs sets the networks of its pods' addresses",
			cfg.NodeName)
	}
	return nil, fmt.Errorf("the Node %s has no podCIDR: run kube-controller-manager with --allocate-node-cidrs and --cluster-cidr, or set "+
		"--pod-cidrs for this agent", cfg.NodeName)
}

func (n *Network) podCIDRs() ([]netip.Prefix, error) { return CIDRs(n.Options, n.Store) }

// poolCIDRs returns the same, once the agent knows which of these addresses have been given to this
// node's pods by another plugin. It does not wait for that if only --pod-cidrs sets the networks,
// because there may be no API server.
func (n *Network) poolCIDRs() ([]netip.Prefix, error) {
	prefixes, err := n.podCIDRs()
	if err == nil && len(n.Options.PodPrefixes()) == 0 && slices.Contains(n.Store.Unsynced(), "pods") {
		return nil, fmt.Errorf("the Pods of the Node %s are not known yet", n.Options.NodeName)
	}
	return prefixes, err
}
