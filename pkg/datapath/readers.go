package datapath

import (
	"fmt"

	"fairlead.io/fairlead/pkg/flowtable"
	"fairlead.io/fairlead/pkg/ticks"
)

// RangeEpochs returns a RangeEpochs, with a change under way, since it is unknown what the programs were told
// before. The caller must close it.
func (d *shared) RangeEpochs() (*ticks.RangeEpochs, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, fmt.Errorf("open range_epochs: %w", ErrNoMaps)
	}
	return ticks.NewRangeEpochs(d.maps)
}

// Flows returns a Flows. The caller must close it. It pins and attaches nothing.
func (d *shared) Flows() (*flowtable.Flows, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, fmt.Errorf("open flows: %w", ErrNoMaps)
	}
	return flowtable.NewLive(d.maps, &d.copying)
}

// RouteEpoch returns a RouteEpoch. The caller must close it.
func (d *shared) RouteEpoch() (*ticks.RouteEpoch, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, fmt.Errorf("open route_epoch: %w", ErrNoMaps)
	}
	return ticks.NewRouteEpoch(d.maps)
}
