package maps

import "fmt"

// SetServed makes the map of the devices that have the programs of packets say what want says. Every device that stays is
// there all the time.
func (m *Maps) SetServed(want map[uint32]bool) error {
	var gone []uint32
	var index, row uint32
	have := map[uint32]bool{}
	rows := m.Served.Iterate()
	for rows.Next(&index, &row) {
		have[index] = true
		if !want[index] {
			gone = append(gone, index)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the devices that are served: %w", err)
	}
	for index, served := range want {
		if !served || have[index] {
			continue
		}
		if err := m.Served.Put(index, uint32(1)); err != nil {
			return fmt.Errorf("add device %d to those that are served: %w", index, err)
		}
	}
	for _, index := range gone {
		if err := m.Served.Delete(index); err != nil {
			return fmt.Errorf("remove device %d from those that are served: %w", index, err)
		}
	}
	return nil
}

// SetFormer says until which tick what does not begin a connection may be of one that the stack has translated.
func (m *Maps) SetFormer(until uint32) error {
	if err := m.Former.Put(uint32(0), until); err != nil {
		return fmt.Errorf("write until when the stack has connections of before: %w", err)
	}
	return nil
}

// SetTunnel says which device leads to the pods of other nodes, by its index; 0: none.
func (m *Maps) SetTunnel(index uint32) error {
	if err := m.Tunnel.Put(uint32(0), index); err != nil {
		return fmt.Errorf("write the tunnel's device %d: %w", index, err)
	}
	return nil
}
