package datapath

import "fmt"

// Flows returns a Flows. The caller must close it. It pins and attaches nothing.
func (d *shared) Flows() (*Flows, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil, fmt.Errorf("open flows: %w", ErrNoMaps)
	}
	return NewLiveFlows(d.maps, &d.copying)
}
