package datapath

import (
	"fmt"

	"fairlead.io/fairlead/pkg/maps"
)

// Cluster returns what the programs know about the nodes of the cluster.
func (d *shared) Cluster() (maps.Cluster, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return maps.Cluster{}, fmt.Errorf("read the nodes of the cluster: %w", ErrNoMaps)
	}
	return maps.ClusterRows(d.maps.ClusterNodes, d.maps.NodeSources)
}

// SetCluster tells the programs who the nodes of the cluster are, and whose pods have which
// addresses.
func (d *shared) SetCluster(want maps.Cluster) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return fmt.Errorf("write the nodes of the cluster: %w", ErrNoMaps)
	}
	_, err := d.maps.SetCluster(want)
	return err
}
