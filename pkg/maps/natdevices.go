package maps

import "fmt"

// SetNatDevices makes the map of the devices that have packet programs equal to want. Rows that stay
// are never absent meanwhile.
func (m *Maps) SetNatDevices(want map[uint32]bool) error {
	var gone []uint32
	var index, row uint32
	have := map[uint32]bool{}
	rows := m.NatDevices.Iterate()
	for rows.Next(&index, &row) {
		have[index] = true
		if !want[index] {
			gone = append(gone, index)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the devices that have programs: %w", err)
	}
	for index, wanted := range want {
		if !wanted || have[index] {
			continue
		}
		if err := m.NatDevices.Put(index, uint32(1)); err != nil {
			return fmt.Errorf("add device %d to those that have programs: %w", index, err)
		}
	}
	for _, index := range gone {
		if err := m.NatDevices.Delete(index); err != nil {
			return fmt.Errorf("remove device %d from those that have programs: %w", index, err)
		}
	}
	return nil
}

// SetConntrackImport sets the tick until which a packet that does not open a connection may belong to one
// that the stack translates.
func (m *Maps) SetConntrackImport(until uint32) error {
	if err := m.ConntrackImport.Put(uint32(0), until); err != nil {
		return fmt.Errorf("write until when the stack may translate older connections: %w", err)
	}
	return nil
}

// SetTunnel sets the index of the device that leads to the pods of other nodes; 0 means none.
func (m *Maps) SetTunnel(index uint32) error {
	if err := m.Tunnel.Put(uint32(0), index); err != nil {
		return fmt.Errorf("write the tunnel's device %d: %w", index, err)
	}
	return nil
}
