package maps

import (
	"fmt"

	"fairlead.io/fairlead/pkg/bpf"
)

// SetDeviceMacs makes the map of the devices' hardware addresses equal to want. Rows that stay are
// never absent meanwhile.
func (m *Maps) SetDeviceMacs(want map[uint32][6]byte) error {
	var gone []uint32
	var index uint32
	var row bpf.MapsDeviceMac
	have := map[uint32][6]byte{}
	rows := m.DeviceMacs.Iterate()
	for rows.Next(&index, &row) {
		have[index] = row.Mac
		if _, ok := want[index]; !ok {
			gone = append(gone, index)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the devices' hardware addresses: %w", err)
	}
	for index, mac := range want {
		if had, ok := have[index]; ok && had == mac {
			continue
		}
		if err := m.DeviceMacs.Put(index, bpf.MapsDeviceMac{Mac: mac}); err != nil {
			return fmt.Errorf("write the hardware address of device %d: %w", index, err)
		}
	}
	for _, index := range gone {
		if err := m.DeviceMacs.Delete(index); err != nil {
			return fmt.Errorf("remove the hardware address of device %d: %w", index, err)
		}
	}
	return nil
}
