package lb

import (
	"fmt"

	"fairlead.io/fairlead/pkg/maps"
)

// Settings are what the row of a Service says besides its slots: how a backend is chosen, and who may use it.
type Settings struct {
	Algorithm       Algorithm
	Flags           uint8
	AffinitySeconds uint32
}

// SettingsOf returns the settings in a row.
func SettingsOf(row *maps.Service) Settings {
	return Settings{Algorithm: Algorithm(row.Algorithm), Flags: row.Flags, AffinitySeconds: row.AffinitySeconds}
}

// Put writes the settings into a row.
func (s Settings) Put(row *maps.Service) {
	row.Algorithm, row.Flags, row.AffinitySeconds = uint8(s.Algorithm), s.Flags, s.AffinitySeconds
}

// Text returns the settings as people read them.
func (s Settings) Text() string {
	return fmt.Sprintf("%s, flags %d, affinity %d s", s.Algorithm, s.Flags, s.AffinitySeconds)
}
